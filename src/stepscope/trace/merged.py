"""Traces of several ranks that were merged into one file: one trace per rank again, or the reason why not."""

import re
from dataclasses import replace

import numpy as np

from stepscope.errors import InputError
from stepscope.stats.robust import distinct
from stepscope.trace.table import EventKind, Int64s, Trace, event_kinds, labels, of_kinds, only_rows
from stepscope.units import printable

# What a merging tool writes as the process of a rank: its label, or its id with the rank in front.
_RANK_LABEL = re.compile(r"\brank[\s_:#-]*(\d{1,6})\b", re.IGNORECASE)
# TraceFusion adds this for each rank to the ids of processes, whose own are below 2^22
_IDS_PER_RANK = 100_000_000
_ON_DEVICE = (EventKind.KERNEL, EventKind.COMM_KERNEL, EventKind.COPY, EventKind.SET)
# of a device's operations that follow a launch with their number: of the process that launched them, and of another
_OWN, _FOREIGN = 0.9, 0.5
# a process that only starts others calls fewer operators than this share of the busiest one
_FEW_OPERATORS = 0.1


def split_by_rank(trace: Trace) -> tuple[Trace, ...]:
    """Return one trace per process that runs operators; the profiler writes those of one process to a file."""
    kinds = event_kinds(trace)
    pid = trace["pid"]
    of_operators = pid[kinds == EventKind.HOST_OP]
    hosts, count = np.unique(of_operators, return_counts=True)
    hosts = hosts[count >= _FEW_OPERATORS * count.max()]
    if len(hosts) < 2:
        return (trace,)
    devices = distinct(pid[of_kinds(kinds, _ON_DEVICE) & ~np.isin(pid, hosts)])
    ranks, stated = _ranks(trace, hosts), _stated(trace, devices)
    host_of = {rank: host for host, rank in ranks.items()}
    owner = {
        device: host_of[stated[device]] if stated.get(device) in host_of else _launched_by(trace, device, hosts)
        for device in devices.tolist()
    }
    return tuple(
        _part(trace, [host, *(device for device, of in owner.items() if of == host)], ranks.get(host))
        for host in hosts.tolist()
    )


def _launched_by(trace: Trace, device: int, hosts: Int64s) -> int:
    """Return the process that launched the work of a device: most of it follows a call with its number there."""
    kinds, pid, correlation = event_kinds(trace), trace["pid"], trace.arg("correlation")
    work = np.flatnonzero((pid == device) & of_kinds(kinds, _ON_DEVICE))
    numbers = correlation.at(work, missing=-1)
    calls = correlation.rows[kinds[correlation.rows] == EventKind.RUNTIME]
    shares = []
    for host in hosts.tolist():
        own = calls[pid[calls] == host]
        number, first = np.unique(correlation.at(own, missing=-1), return_index=True)
        place = np.minimum(np.searchsorted(number, numbers), max(len(number) - 1, 0))
        known = number[place] == numbers if len(number) else np.zeros(len(work), bool)
        begun = trace["ts_ns"][own[first[place[known]]]] if len(number) else np.empty(0, np.int64)
        shares.append(float((begun <= trace["ts_ns"][work[known]]).sum()) / max(len(work), 1))
    best, *others = sorted(shares, reverse=True)
    if best < _OWN or others[0] > _FOREIGN:
        raise InputError(
            f"{trace.path} holds the operators of {len(hosts)} processes, and device work ({_label(trace, device)}) "
            "that is not linked to one of them: several ranks were merged into this file; "
            "pass the traces of the ranks as they were before"
        )
    return int(hosts[int(np.argmax(shares))])


def _label(trace: Trace, pid: int) -> str:
    named = {process: text for (process, _), text in labels(trace, "process_name").items()}
    return f"process {printable(named.get(pid, '') or trace.id_text(pid), width=60)}"


def _stated(trace: Trace, pids: Int64s) -> dict[int, int]:
    """Return the ranks that processes have in their ids or labels."""
    texts: dict[int, str] = {pid: trace.id_text(pid) for pid in pids.tolist()}
    for name in ("process_name", "process_labels"):
        for (pid, _), text in labels(trace, name).items():
            if pid in texts:
                texts[pid] += f" {text}"
    found = {pid: _RANK_LABEL.search(text) for pid, text in texts.items()}
    return {pid: int(match.group(1)) for pid, match in found.items() if match}


def _ranks(trace: Trace, hosts: Int64s) -> dict[int, int]:
    """Return the rank of each process; empty where neither labels nor ids tell them all apart."""
    for ranks in (_stated(trace, hosts), {pid: pid // _IDS_PER_RANK for pid in hosts.tolist()}):
        if len(set(ranks.values())) == len(hosts):
            return ranks
    return {}


def _part(trace: Trace, processes: list[int], rank: int | None) -> Trace:
    columns, args = only_rows(trace.columns, trace.args, np.isin(trace["pid"], processes))
    # one for all of them, and it may state the rank of the file that was merged first
    header = {key: value for key, value in trace.header.items() if key not in ("distributedInfo", "trace_id")}
    if rank is not None:
        header["distributedInfo"] = {"rank": rank}
    return replace(trace, header=header, columns=columns, args=args)
