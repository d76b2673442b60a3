"""Which collectives did this rank run, when, in which group, and with how many bytes?

On devices the kernel has the time and the host has the meaning:

    kernel --launch--> inside record_param_comms           one record around the launch
                  `--> inside nccl:coalesced               the records since the group's previous launch

Traces without arguments (old versions) still name the operation in the range around the launch and its tensor in
`Input Dims`. On gloo the operator (`c10d::`) has the meaning and the `gloo:` span the time (see `gloo.py`).
"""

from dataclasses import replace

import numpy as np

from stepscope.contract.collectives import element_bytes, is_comm_annotation, op_name
from stepscope.run.collectives.groups import UNKNOWN_GROUP, Group, group_of_record, header_groups
from stepscope.run.collectives.shapes import shape_bytes
from stepscope.run.collectives.table import Collectives, Meaning, collective_table
from stepscope.run.device_work import DeviceWork, Rows, enclosing
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, Kinds, rows_named
from stepscope.trace.table import Trace

RECORD = "record_param_comms"
_RECORD_ARGS = (
    "collective", "in_elems", "out_elems", "dtype", "group_size", "group_name", "group_desc", "group_ranks",
    "group_start", "group_stride", "src_rank", "dst_rank", "comm_seq",
)  # fmt: skip
_GROUP_ARGS = tuple(name for name in _RECORD_ARGS if name.startswith("group_"))


def device_collectives(trace: Trace, kinds: Kinds, work: DeviceWork) -> Collectives:
    """Return the communication kernels of a rank with their meaning."""
    index = np.flatnonzero(work.kind == EventKind.COMM_KERNEL)
    launch = work.launch_row[index]
    meanings = _meanings(trace, kinds, work.row[index], launch)
    issue = np.where(launch >= 0, trace["ts_ns"][launch], np.iinfo(np.int64).min)
    return collective_table(
        meanings,
        start_ns=work.start_ns[index],
        end_ns=work.end_ns[index],
        issue_ns=issue,
        step=work.step[index],
        device_index=index,
    )


def _meanings(trace: Trace, kinds: Kinds, kernel_rows: Rows, launch_rows: Rows) -> list[Meaning]:
    """Return one meaning per communication kernel."""
    host = np.flatnonzero((kinds == EventKind.HOST_OP) | (kinds == EventKind.ANNOTATION))
    records = _records(trace, host)
    ranges = rows_named(trace, host, is_comm_annotation)
    by_launch = _by_launch(trace, records, ranges, launch_rows[launch_rows >= 0])
    found = [by_launch.get(launch, ((), -1)) for launch in launch_rows.tolist()]
    alone = kernel_rows[[not rows for rows, _ in found]]
    from_kernel = {
        own["row"]: own for own in _arguments(trace, alone)
    }  # newer versions write them on the kernel itself
    known = header_groups(trace.header)
    cache: dict[tuple[int, ...], Group] = {}
    repeated: dict[tuple[int, ...], Meaning] = {}
    out = []
    for kernel, name, (rows, wrapper) in zip(
        kernel_rows.tolist(), trace["name"][kernel_rows].tolist(), found, strict=True
    ):
        kernel_name = trace.text(name) or ""
        said = [records[r] for r in rows] if rows else [from_kernel[kernel]]
        if len(said) == 1 and (meaning := repeated.get(_all_but_row(said[0]))):
            out.append(replace(meaning, record_row=said[0]["row"]))
        elif rows or said[0]["collective"] >= 0:
            out.append(_of_records(trace, said, wrapper, kernel_name, known, cache))
            if len(said) == 1 and _says_all(trace, said[0]):
                repeated[_all_but_row(said[0])] = out[-1]
        else:
            wrapper_name = trace.text(int(trace["name"][wrapper])) if wrapper >= 0 else None
            out.append(Meaning(op=op_name(wrapper_name or kernel_name), group=UNKNOWN_GROUP))
    return out


def _all_but_row(record: dict[str, int]) -> tuple[int, ...]:
    return tuple(record[name] for name in _RECORD_ARGS)


def _says_all(trace: Trace, record: dict[str, int]) -> bool:
    """Return whether a kernel's meaning follows from the record's arguments alone: no shape and no range is asked."""
    sized = element_bytes(trace.text(record["dtype"])) and min(record["in_elems"], record["out_elems"]) >= 0
    return bool(trace.text(record["collective"]) and sized)


def _records(trace: Trace, host: Rows) -> dict[int, dict[str, int]]:
    """Return the arguments of every record that stands for communication (waits do not), by row."""
    rows = rows_named(trace, host, lambda s: s == RECORD)
    records = _arguments(trace, rows)
    return {
        row: record
        for row, record in zip(rows.tolist(), records, strict=True)
        if trace.text(record["collective"]) != "wait"
    }


def _arguments(trace: Trace, rows: Rows) -> list[dict[str, int]]:
    """Return the record arguments at these rows; -1 for what is not there."""
    columns = {name: trace.arg(name).at(rows, missing=-1).tolist() for name in _RECORD_ARGS}
    return [
        {"row": row, **{name: values[i] for name, values in columns.items()}} for i, row in enumerate(rows.tolist())
    ]


def _by_launch(
    trace: Trace, records: dict[int, dict[str, int]], ranges: Rows, launches: Rows
) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return for each launch the records it carries out, and the innermost communication range around it."""
    launches = distinct(launches)
    record_rows = np.array(sorted(records), np.int64)
    inside = enclosing(trace, record_rows, launches) if len(record_rows) else np.full(len(launches), -1)
    wrapper = enclosing(trace, ranges, launches) if len(ranges) else np.full(len(launches), -1)
    found: dict[int, tuple[tuple[int, ...], int]] = {
        launch: (((record,) if record >= 0 else ()), around)
        for launch, record, around in zip(launches.tolist(), inside.tolist(), wrapper.tolist(), strict=True)
    }
    found.update(_coalesced(trace, records, found))
    return found


def _coalesced(
    trace: Trace, records: dict[int, dict[str, int]], found: dict[int, tuple[tuple[int, ...], int]]
) -> dict[int, tuple[tuple[int, ...], int]]:
    """Return the records of group launches: those on the same thread since its previous launch."""
    ts, tid = trace["ts_ns"], trace["tid"]
    claimed = {record for rows, _ in found.values() for record in rows}
    pending: dict[int, list[int]] = {}
    out: dict[int, tuple[tuple[int, ...], int]] = {}
    for row in sorted([*(set(records) - claimed), *found], key=lambda row: int(ts[row])):
        mine = pending.setdefault(int(tid[row]), [])
        if row not in found:
            mine.append(row)
            continue
        if mine and not found[row][0]:
            out[row] = (tuple(mine), found[row][1])
        mine.clear()
    return out


def _of_records(
    trace: Trace,
    records: list[dict[str, int]],
    wrapper: int,
    kernel_name: str,
    known: dict[str, Group],
    cache: dict[tuple[int, ...], Group],
) -> Meaning:
    """Return what one or several records (a coalesced group) say about a kernel."""
    first = records[0]
    key = tuple(first[name] for name in _GROUP_ARGS)
    if key not in cache:
        cache[key] = group_of_record(trace, first, known)
    ops = [op_name(_record_name(trace, r, wrapper, kernel_name)) for r in records]
    sizes = [_bytes(trace, r, wrapper, op=op, group=cache[key]) for r, op in zip(records, ops, strict=True)]
    messages = tuple(
        (op == "send", r["dst_rank"] if op == "send" else r["src_rank"], max(size))
        for r, op, size in zip(records, ops, sizes, strict=True)
        if op in ("send", "recv")
    )
    names, peers = set(ops), {peer for _, peer, _ in messages}
    return Meaning(
        op=ops[0] if len(names) == 1 else "send_recv" if names <= {"send", "recv"} else "unknown",
        group=cache[key],
        in_bytes=_sum([size[0] for size in sizes]),
        out_bytes=_sum([size[1] for size in sizes]),
        peer=peers.pop() if len(peers) == 1 else -1,
        record_row=first["row"],
        messages=messages,
    )


def _record_name(trace: Trace, record: dict[str, int], wrapper: int, kernel_name: str) -> str:
    named = trace.text(record["collective"])
    return named or (trace.text(int(trace["name"][wrapper])) if wrapper >= 0 else None) or kernel_name


def _bytes(trace: Trace, record: dict[str, int], wrapper: int, *, op: str, group: Group) -> tuple[int, int]:
    """Return bytes sent and received, from the element counts or else from the recorded shapes; -1 unknown."""
    size = element_bytes(trace.text(record["dtype"]))
    if size and record["in_elems"] >= 0 and record["out_elems"] >= 0:
        sent, received = record["in_elems"] * size, record["out_elems"] * size
    else:
        sent = _shape_bytes_at(trace, record["row"])
        sent = _shape_bytes_at(trace, wrapper) if sent < 0 and wrapper >= 0 else sent
        received = received_bytes(sent, op=op, ranks=group.size)
    if op in ("send", "recv"):
        return (sent, 0) if op == "send" else (0, received)
    return sent, received


def received_bytes(sent: int, *, op: str, ranks: int | None) -> int:
    """Return what a rank that sends its `sent` bytes receives; -1 where that takes the group's size.

    >>> received_bytes(100, op="all_gather", ranks=4), received_bytes(100, op="reduce_scatter", ranks=4)
    (400, 25)
    """
    if sent < 0 or (op in ("all_gather", "reduce_scatter") and not ranks):
        return -1
    if op == "all_gather":
        return sent * (ranks or 1)
    return sent // (ranks or 1) if op == "reduce_scatter" else sent


def _shape_bytes_at(trace: Trace, row: int) -> int:
    rows = np.array([row], np.int64)
    dims = int(trace.arg("input_dims").at(rows, missing=-1)[0])
    types = int(trace.arg("input_types").at(rows, missing=-1)[0])
    return shape_bytes(trace.text(dims), trace.text(types))


def _sum(sizes: list[int]) -> int:
    """Return the sum, -1 where any part is unknown."""
    return sum(sizes) if all(s >= 0 for s in sizes) else -1
