"""NCCL's debug log of a rank: version, topology, channels, transports, algorithms, collectives, warnings.

Lines are read one by one and counted, not listed, so a log of any size takes the same memory. The algorithm is the one
that NCCL logged, never what a kernel's name suggests.
"""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import inf
from typing import Any, NamedTuple, TypeVar

from stepscope.contract.operations import ALL_GATHER, REDUCE_SCATTER, op_name
from stepscope.contract.run_folder import json_object
from stepscope.records import Row
from stepscope.side_file import is_number

# Lines of the debug log: the forms of 2.14 to 2.30, one pattern per fact.
#
#     [0] [2026-01-02 10:11:12] host:441:477 [3] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
#     `-launcher, from 2.26-'    host:pid:thread [device]   level   text
#
# Every piece has a longest length: a line may hold a million digits.

LINE = re.compile(r"[\w.-]{1,128}:\d{1,12}:\d{1,12} \[\d{1,4}\] (?:[\w./+-]{1,128}:\d{1,6} )?NCCL (?:INFO|WARN|TRACE) ")
# the same without host and process, as guides print them
BARE_LINE = re.compile(r"^NCCL (?:INFO|WARN|TRACE) ", re.MULTILINE)
_WHO = re.compile(r"([\w.-]{1,128}):(\d{1,12}):\d{1,12} \[\d{1,4}\](?: ([\w./+-]{1,128}:\d{1,6}))?$")
_LEVELS = (b"INFO", b"WARN", b"TRACE", b"ABORT", b"ERROR")
_VERSION = re.compile(r"NCCL version (\S{1,64})")
_CHANNELS = re.compile(r"(\d{1,9}) coll channels")
_VIA = re.compile(r"\bvia ([A-Za-z0-9]{1,32}(?:/[A-Za-z0-9]{1,32}){0,4})")
_NETWORK = re.compile(r"Using network (\S{1,64})")
_SETTING = re.compile(r"\b(NCCL_[A-Z0-9_]{1,60}) set by environment to (\S{1,100}?)\.?$")
_TOPOLOGY = re.compile(r"=== System : maxBw (\d{1,9}(?:\.\d{1,9})?) totalBw (\d{1,9}(?:\.\d{1,9})?) ===")
_NODES = re.compile(r"\brank (\d{1,9}) nRanks (\d{1,9}) nNodes (\d{1,9}) localRanks (\d{1,9})")
_INIT = re.compile(
    r"comm (0x[0-9a-f]{1,16}) rank (\d{1,9}) n[rR]anks (\d{1,9}) cudaDev (\d{1,4})(?: nvmlDev \d{1,4})? "
    r"busId ([0-9a-f]{1,12})(?: commId (0x[0-9a-f]{1,16}))? - Init COMPLETE"
)
_TIMINGS = re.compile(r"Init timings\b.{0,80}?rank (\d{1,9}) nranks (\d{1,9}) total (\d{1,9}\.\d{1,9}) \((.{0,400})")
_TIMING = re.compile(r"([a-z_]{1,32}) (\d{1,9}\.\d{1,9})")
_COLLECTIVE = re.compile(
    r"(?P<op>[A-Z][A-Za-z]{1,31}): opCount (?P<number>[0-9a-f]{1,16}) sendbuff \S{1,32} recvbuff \S{1,32} "
    r"count (?P<count>\d{1,18}) datatype (?P<type>\d{1,3}) op \d{1,4} root -?\d{1,9} "
    r"comm (?P<comm>\S{1,32})(?: \[nranks=(?P<ranks>\d{1,9})\])?"
)
_TUNING = re.compile(
    r"(?:(?P<op>[A-Z][A-Za-z]{1,31}): )?(?P<bytes>\d{1,18}) Bytes -> Algo (?P<algo>[A-Z_a-z0-9+]{1,24}) "
    r"proto (?P<proto>[A-Z_a-z0-9]{1,24})"
    r"(?: time (?P<time>\d{1,12}(?:\.\d{1,9})?)| channel\{Lo\.\.Hi\}=\{(?P<low>\d{1,5})\.\.(?P<high>\d{1,5})\})?"
)
# in words, as wrappers of NCCL and guides write it
_ALGORITHM = re.compile(
    r"\b[Aa]lgo(?:rithm)?\b[:= ]{1,3}(?P<algo>[A-Za-z_]{1,24})(?:\W{1,3}[Pp]roto(?:col)?[:= ]{1,3}(?P<proto>\w{1,24}))?"
)
_ANY_CALL = re.compile(r"\b(?P<op>[A-Z][A-Za-z]{1,31})\b:? ?opCount (?:[0-9a-f]{1,16} bytes (?P<bytes>\d{1,18})\b)?")
_CHANNEL = re.compile(r"^Channel (\d{1,4})(?:/(\d{1,4}))? ?: ")
_RING = re.compile(r"^Ring \d{1,4} : ")
_LINK = re.compile(
    r"\+ (?P<kind>NVL|PCI|NET|SYS|C2C|LOC)\[(?P<bw>\d{1,9}(?:\.\d{1,9})?)\] - (?P<to>GPU|NVS|NIC|NET|CPU|PCI)/"
)
_INTERFACE = re.compile(r"NET/(Socket|IB)\s*: Using (.{1,300})")
_NO_DEVICE = re.compile(r"NET/IB : No device found|Failed to initialize NET plugin IB")

_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
# NCCL up to 2.23 writes their numbers (src/include/nccl_common.h of NCCL 2.20 to 2.28)
_PROTOCOLS = ("LL", "LL128", "SIMPLE")
# by ncclDataType_t: int8, uint8, int32, uint32, int64, uint64, half, float, double, bfloat16, fp8 e4m3, fp8 e5m2
_TYPE_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)


class LogLine(NamedTuple):
    """One line without its prefix."""

    host: str
    pid: int
    level: str
    text: str


def _log_line(raw: bytes) -> LogLine | None:
    at = raw.find(b" NCCL ", 0, 4096)
    if at < 0:
        return None
    level, _, text = raw[at + 6 : at + 6 + 2000].partition(b" ")
    who = _who(raw[max(0, at - 400) : at]) if level in _LEVELS else None
    if who is None:
        return None
    return LogLine(*who, level.decode(), text.decode(errors="replace").rstrip())


@lru_cache(maxsize=4096)
def _who(prefix: bytes) -> tuple[str, int] | None:
    found = _WHO.search(prefix.decode(errors="replace"))
    return (found[1], int(found[2])) if found else None


def _spelt(said: str, names: tuple[str, ...]) -> str:
    return names[int(said)] if said.isdigit() and int(said) < len(names) else said.upper()


def _transport_name(path: str) -> str:
    parts = [part for part in path.split("/") if not part.isdigit()]
    if parts[:1] == ["NET"] and parts[-1].startswith("GDRDMA"):
        return "/".join((*parts[:2], "GDRDMA"))
    return "/".join(parts[:2]) or "unknown"


def shows_anything(log: Row) -> bool:
    """Return whether the log holds any fact."""
    facts = (log.version, log.channels, log.transports, log.network, log.warnings, log.total_bw_gb_per_s)
    return any((*facts, log.links, log.settings, log.num_rings, log.choices, log.collectives))


# NCCL inspector (2.28 and later): JSON lines, one collective each, summed by operation and group.
#
# {"header": {"id": "0x7f8c", "comm_name": "dp", "rank": 3, "n_ranks": 8, "nnodes": 1}, "metadata": {...},
#  "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
#                "coll_algobw_gbs": 277.21, "coll_busbw_gbs": 485.11}}

_INSPECTOR_MAX_TEXT = 200


def inspected(lines: Iterable[bytes]) -> tuple[tuple[Row, ...], int]:
    """Return the sums by rank, operation and communicator, and how many lines could not be used."""
    sums: dict[tuple[int, str, str], tuple[Row, list[float]]] = {}
    damaged = 0
    for raw in lines:
        if not raw.strip():
            continue
        one = _measured(json_object(raw) or {})
        if one is None:
            damaged += 1
            continue
        key = (one.rank, one.op, one.group)
        if key in sums or len(sums) < 2_000:
            total, bandwidths = sums.setdefault(key, (Row(one, count=0, size_bytes=0, time_ns=0), [0.0, -inf]))
            total |= {name: total[name] + one[name] for name in ("count", "size_bytes", "time_ns")}
            if one.busbw_gb_per_s is not None:
                bandwidths[:] = bandwidths[0] + one.busbw_gb_per_s * one.time_ns, max(bandwidths[1], one.busbw_gb_per_s)
    return tuple(_with_bandwidths(*one) for one in sums.values()), damaged


def _with_bandwidths(total: Row, bandwidths: list[float]) -> Row:
    weighted, best = bandwidths
    return Row(
        total,
        algbw_gb_per_s=total.size_bytes / total.time_ns if total.time_ns else None,
        busbw_gb_per_s=weighted / total.time_ns if total.time_ns and best >= 0 else None,
        best_busbw_gb_per_s=best if best >= 0 else None,
    )


def _measured(line: dict[str, Any]) -> Row | None:
    header = line.get("header")
    kind = "coll" if isinstance(line.get("coll_perf"), dict) else "p2p"
    perf = line.get(f"{kind}_perf")
    if not isinstance(header, dict) or not isinstance(perf, dict):
        return None
    rank, ranks = header.get("rank"), header.get("n_ranks")
    size, time_us, busbw = (
        float(found or 0) if is_number(found := perf.get(f"{kind}_{name}"), low=0) else None
        for name in ("msg_size_bytes", "exec_time_us", "busbw_gbs")
    )
    named = perf.get(kind)
    if type(rank) is not int or not isinstance(named, str) or size is None or time_us is None:
        return None
    time_ns = round(1000 * time_us)
    group = str(header.get("comm_name") or header.get("id") or "?")[:_INSPECTOR_MAX_TEXT]
    return Row(
        rank=rank,
        op=op_name(named[:_INSPECTOR_MAX_TEXT]),
        group=group,
        group_desc=group,
        group_size=ranks if type(ranks) is int else None,
        count=1,
        size_bytes=int(size),
        time_ns=time_ns,
        busbw_gb_per_s=busbw,
    )


# of transports, links and settings
_LOG_MAX_KINDS = 64
# distinct operations and sizes
_MAX_SIZES = 4_000
_MAX_COMMUNICATORS = 200

_K = TypeVar("_K")


def nccl_log(raw_lines: Iterable[bytes], *, rank: int) -> Row:
    """Return the contents of one rank's log; of repeated facts the first counts."""
    collected = _ProcessLog()
    for raw in raw_lines:
        line = _log_line(raw)
        if line is not None:
            collected.take(line)
        elif b"NCCL" in raw or b" via " in raw or b"coll channels" in raw:
            text = raw[:4096].decode(errors="replace").rstrip()
            collected.take(LogLine("", 0, "INFO", text.removeprefix("NCCL INFO ")))
    return collected.log(rank)


def nccl_logs(raw_lines: Iterable[bytes]) -> tuple[Row, ...]:
    """Return the contents of a log of several processes by rank, for each process whose rank is in it."""
    by_process: dict[tuple[str, int], _ProcessLog] = {}
    for raw in raw_lines:
        line = _log_line(raw)
        if line is None:
            continue
        key = (line.host, line.pid)
        if key in by_process or len(by_process) < 1_000:
            by_process.setdefault(key, _ProcessLog()).take(line)
    known = [(c.rank_of_world(), c) for c in by_process.values()]
    ranked = sorted(((r, c) for r, c in known if r is not None), key=lambda pair: pair[0])
    version = next((c.version for c in by_process.values() if c.version), None)
    for _, collected in ranked:
        collected.version = collected.version or version  # one rank prints it for all
    return tuple(collected.log(rank) for rank, collected in ranked)


class _ProcessLog:
    def __init__(self) -> None:
        self.version: str | None = None
        self.host: str | None = None
        self.channels: int | None = None
        self.network: str | None = None
        self.nodes: tuple[int, ...] | None = None
        self.bandwidth: tuple[float, float] | None = None
        self.infiniband_missing = False
        self.num_rings = 0
        self.listed_channels = 0
        self.num_lines = 0
        self.transports: Counter[str] = Counter()
        self.links: dict[str, float] = {}
        self.interfaces: dict[str, None] = {}
        self.settings: dict[str, str] = {}
        self.warnings: dict[str, None] = {}
        self.communicators: dict[str, Row] = {}
        self.timings: dict[tuple[int, int], list[tuple[float, dict[str, float]]]] = {}
        self.choices: Counter[tuple[str | None, int | None, str, str, int | None]] = Counter()
        self.collectives: Counter[tuple[str, int | None, int | None]] = Counter()
        self.ranks_of: dict[str, int] = {}

    def take(self, line: LogLine) -> None:
        self.num_lines += 1
        text = line.text
        self.host = self.host or line.host or None
        if line.level == "WARN" or "NCCL WARN " in text:
            said = text.partition("NCCL WARN ")[2] or text
            if len(self.warnings) < 20:
                self.warnings[said[:400].strip()] = None
        elif "opCount" in text:
            self._collective(text)
        elif "Bytes -> Algo" in text:
            self._choice(text)
        elif " via " in text:
            self._transport(text)
        else:
            self._rest(text)

    def rank_of_world(self) -> int | None:
        if self.communicators:
            return max(self.communicators.values(), key=lambda c: c.num_ranks).rank
        return self.nodes[0] if self.nodes else None

    def log(self, rank: int) -> Row:
        world = max((c.num_ranks for c in self.communicators.values()), default=None)
        return Row(
            rank=rank,
            version=self.version,
            channels=self.channels or self.listed_channels or None,
            transports=dict(self.transports.most_common()),
            network=self.network,
            warnings=tuple(self.warnings),
            host=self.host,
            num_ranks=self.nodes[1] if self.nodes else world,
            num_nodes=self.nodes[2] if self.nodes else None,
            local_ranks=self.nodes[3] if self.nodes else None,
            max_bw_gb_per_s=self.bandwidth[0] if self.bandwidth else None,
            total_bw_gb_per_s=self.bandwidth[1] if self.bandwidth else None,
            links=dict(self.links),
            interfaces=tuple(self.interfaces),
            infiniband_missing=self.infiniband_missing,
            settings=dict(self.settings),
            communicators=tuple(self._timed_communicators()),
            num_rings=self.num_rings or None,
            choices=tuple(self._named_choices()),
            collectives=tuple(
                Row(op=op, size_bytes=size, num_ranks=ranks, count=n)
                for (op, size, ranks), n in self.collectives.most_common()
            ),
            num_lines=self.num_lines,
        )

    def _collective(self, text: str) -> None:
        found = _COLLECTIVE.search(text)
        if found is None:
            if named := _ANY_CALL.search(text):
                op, size = op_name(named["op"]), int(named["bytes"]) if named["bytes"] else None
                # of the others it may be one rank's share
                _count(self.collectives, (op, None if op in (ALL_GATHER, REDUCE_SCATTER) else size, None), _MAX_SIZES)
            return
        op, kind = op_name(found["op"]), int(found["type"])
        ranks = int(found["ranks"]) if found["ranks"] else self.ranks_of.get(found["comm"])
        size = int(found["count"]) * _TYPE_BYTES[kind] if kind < len(_TYPE_BYTES) else None
        if size is not None and op in (ALL_GATHER, REDUCE_SCATTER):
            size = size * ranks if ranks else None  # the count is one rank's share
        _count(self.collectives, (op, size, ranks), _MAX_SIZES)

    def _choice(self, text: str) -> None:
        found = _TUNING.search(text)
        if found is None:
            return
        channels = int(found["high"]) - int(found["low"]) + 1 if found["high"] is not None else None
        op = op_name(found["op"]) if found["op"] else None
        names = (_spelt(found["algo"], _ALGORITHMS), _spelt(found["proto"], _PROTOCOLS))
        _count(self.choices, (op, int(found["bytes"]), *names, channels), _MAX_SIZES)

    def _transport(self, text: str) -> None:
        for path in _VIA.findall(text):
            _count(self.transports, _transport_name(path), _LOG_MAX_KINDS)

    def _rest(self, text: str) -> None:
        if self.version is None and (found := _VERSION.search(text)):
            self.version = found[1]
        elif self.channels is None and (found := _CHANNELS.search(text)):
            self.channels = int(found[1])
        elif self.network is None and (found := _NETWORK.search(text)):
            self.network = found[1]
        elif found := _INIT.search(text):
            self._communicator(*found.groups())
        elif found := _TIMINGS.search(text):
            parts = {name: float(seconds) for name, seconds in _TIMING.findall(found[4])[:_LOG_MAX_KINDS]}
            waiting = self.timings.setdefault((int(found[1]), int(found[2])), [])
            if len(waiting) < _MAX_COMMUNICATORS:
                waiting.append((float(found[3]), parts))
        elif found := _TOPOLOGY.search(text):
            self.bandwidth = self.bandwidth or (float(found[1]), float(found[2]))
        elif found := _NODES.search(text):
            nodes = tuple(map(int, found.groups()))
            self.nodes = max(self.nodes, nodes, key=lambda n: n[1]) if self.nodes else nodes
        elif found := _SETTING.search(text):
            if len(self.settings) < _LOG_MAX_KINDS:
                self.settings[found[1]] = found[2]
        elif found := _LINK.search(text):
            self.links[found["kind"]] = max(self.links.get(found["kind"], 0.0), float(found["bw"]))
        elif found := _INTERFACE.search(text):
            if len(self.interfaces) < _LOG_MAX_KINDS:
                self.interfaces[f"{found[1]}: {found[2].strip()}"] = None
        elif _RING.match(text):
            self.num_rings += 1
        elif found := _CHANNEL.match(text):
            self.listed_channels = max(self.listed_channels, int(found[2] or int(found[1]) + 1))
        elif (found := _ALGORITHM.search(text)) and found["algo"].upper() in _ALGORITHMS:
            _count(self.choices, (None, None, found["algo"].upper(), (found["proto"] or "?").upper(), None), _MAX_SIZES)
        if _NO_DEVICE.search(text):
            self.infiniband_missing = True

    def _communicator(self, comm: str, rank: str, ranks: str, device: str, bus_id: str, comm_id: str | None) -> None:
        if len(self.communicators) < _MAX_COMMUNICATORS:
            self.ranks_of[comm] = int(ranks)
            made = Row(id=comm_id, rank=int(rank), num_ranks=int(ranks), device=int(device), bus_id=bus_id)
            self.communicators.setdefault(comm_id or comm, made)

    def _timed_communicators(self) -> Iterable[Row]:
        left = {key: list(times) for key, times in self.timings.items()}
        for c in self.communicators.values():
            times = left.get((c.rank, c.num_ranks))
            total, parts = times.pop(0) if times else (None, {})
            yield Row(c, init_s=total, init_parts_s=parts)

    def _named_choices(self) -> Iterable[Row]:
        by_size: dict[int, set[str]] = {}
        for op, size, _ in self.collectives:
            if size is not None:
                by_size.setdefault(size, set()).add(op)
        for (said, size, algorithm, protocol, channels), count in self.choices.most_common():
            of_size = by_size.get(size, set()) if size is not None else set()
            named = said or (next(iter(of_size)) if len(of_size) == 1 else None)
            yield Row(op=named, size_bytes=size, algorithm=algorithm, protocol=protocol, channels=channels, count=count)


def _count(counter: Counter[_K], key: _K, most: int) -> None:
    if key in counter or len(counter) < most:
        counter[key] += 1
