"""NCCL's debug log of a rank: version, topology, channels, transports, algorithms, collectives, warnings.

Lines are read one by one; what is kept of them is counted, not listed, so that a log of any size takes the same memory.
The algorithm is what NCCL says it chose, never what a kernel's name suggests.
"""

import csv
import math
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stepscope.contract.collectives import ALL_GATHER, REDUCE_SCATTER, op_name
from stepscope.contract.run_folder import CACHE_FOLDER, atomic_write, json_object
from stepscope.errors import InputError, TraceError
from stepscope.records import dataclass
from stepscope.side_file import is_number, open_side_file, side_file_lines
from stepscope.trace.streams import Stream
from stepscope.trusted_file import is_trusted_file, make_trusted_folder
from stepscope.units import digest_of, printable

# Lines of the debug log: the forms of 2.14 to 2.30, one pattern per fact.
#
#     [0] [2026-01-02 10:11:12] host:441:477 [3] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
#     `-launcher, from 2.26-'    host:pid:thread [device]   level   text
#
# Every piece has a longest length: a line may hold a million digits.

LINE = re.compile(r"[\w.-]{1,128}:\d{1,12}:\d{1,12} \[\d{1,4}\] (?:[\w./+-]{1,128}:\d{1,6} )?NCCL (?:INFO|WARN|TRACE) ")
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


@dataclass(frozen=True)
class Communicator:
    """One communicator that a rank made."""

    #: the same on all ranks; None before 2.19
    id: str | None
    rank: int
    num_ranks: int
    device: int
    bus_id: str
    #: how long its making took, None where that is not logged (before 2.19)
    init_s: float | None
    init_parts_s: dict[str, float]


@dataclass(frozen=True)
class Choice:
    """What NCCL chose for an operation of a size."""

    #: None where the log does not say (2.20 to 2.22) and no single operation has that size
    op: str | None
    size_bytes: int
    algorithm: str
    protocol: str
    #: None before 2.24
    channels: int | None
    count: int


@dataclass(frozen=True)
class LoggedCollective:
    """Calls of one operation and size."""

    op: str
    #: full buffer; None for a type that is not known
    size_bytes: int | None
    num_ranks: int | None
    count: int


@dataclass(frozen=True)
class NcclLog:
    """What NCCL's own log says on one rank."""

    rank: int
    version: str | None
    channels: int | None
    #: connections by how they are made: P2P/CUMEM, SHM/direct, NET/Socket, NET/IB/GDRDMA, ...
    transports: dict[str, int]
    network: str | None
    warnings: tuple[str, ...]
    host: str | None = None
    num_ranks: int | None = None
    num_nodes: int | None = None
    local_ranks: int | None = None
    #: by NCCL's own model of the topology
    max_bw_gb_per_s: float | None = None
    total_bw_gb_per_s: float | None = None
    #: the widest link of each kind in the topology: NVL, PCI, NET, ..., in GB/s
    links: dict[str, float] = field(default_factory=dict)
    interfaces: tuple[str, ...] = ()
    #: NCCL looked for InfiniBand and found none that it could use
    infiniband_missing: bool = False
    #: variables of the environment that NCCL took
    settings: dict[str, str] = field(default_factory=dict)
    communicators: tuple[Communicator, ...] = ()
    num_rings: int | None = None
    choices: tuple[Choice, ...] = ()
    collectives: tuple[LoggedCollective, ...] = ()
    num_lines: int = 0


# NCCL inspector (2.28 and later): JSON lines, one collective each, summed by operation and group.
#
# {"header": {"id": "0x7f8c", "comm_name": "dp", "rank": 3, "n_ranks": 8, "nnodes": 1}, "metadata": {...},
#  "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
#                "coll_algobw_gbs": 277.21, "coll_busbw_gbs": 485.11}}

_INSPECTOR_MAX_TEXT = 200


@dataclass(frozen=True)
class InspectedOperation:
    """One operation of one communicator on one rank, over all that the file holds."""

    rank: int
    op: str
    group: str
    num_ranks: int | None
    count: int
    size_bytes: int
    time_ns: int
    #: bus bandwidth weighted with time, in GB/s x ns
    busbw_time_sum: float
    best_busbw_gb_per_s: float | None

    @property
    def algbw_gb_per_s(self) -> float | None:
        return self.size_bytes / self.time_ns if self.time_ns else None

    @property
    def busbw_gb_per_s(self) -> float | None:
        return self.busbw_time_sum / self.time_ns if self.time_ns and self.best_busbw_gb_per_s is not None else None


def is_inspector(start: bytes) -> bool:
    """Return whether a file begins as NCCL inspector's do."""
    first = start.lstrip()[:1]
    return first == b"{" and (b'"coll_perf"' in start or b'"p2p_perf"' in start) and b'"header"' in start


def inspected(lines: Iterable[bytes]) -> tuple[tuple[InspectedOperation, ...], int]:
    """Return the sums by rank, operation and communicator, and how many lines could not be used."""
    sums: dict[tuple[int, str, str], InspectedOperation] = {}
    damaged = 0
    for raw in lines:
        if not raw.strip():
            continue
        one = _measured(json_object(raw) or {})
        if one is None:
            damaged += 1
            continue
        key = (one.rank, one.op, one.group)
        before = sums.get(key)
        if before is None:
            if len(sums) < 2_000:
                sums[key] = one
            continue
        best = [b for b in (before.best_busbw_gb_per_s, one.best_busbw_gb_per_s) if b is not None]
        sums[key] = replace(
            before,
            count=before.count + 1,
            size_bytes=before.size_bytes + one.size_bytes,
            time_ns=before.time_ns + one.time_ns,
            busbw_time_sum=before.busbw_time_sum + one.busbw_time_sum,
            best_busbw_gb_per_s=max(best, default=None),
        )
    return tuple(sums.values()), damaged


def _measured(line: dict[str, Any]) -> InspectedOperation | None:
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
    return InspectedOperation(
        rank=rank,
        op=op_name(named[:_INSPECTOR_MAX_TEXT]),
        group=str(header.get("comm_name") or header.get("id") or "?")[:_INSPECTOR_MAX_TEXT],
        num_ranks=ranks if type(ranks) is int else None,
        count=1,
        size_bytes=int(size),
        time_ns=time_ns,
        busbw_time_sum=(busbw or 0.0) * time_ns,
        best_busbw_gb_per_s=busbw,
    )


# of transports, links and settings
_LOG_MAX_KINDS = 64
# operations and sizes that are told apart
_MAX_SIZES = 4_000
_MAX_COMMUNICATORS = 200

_K = TypeVar("_K")


def nccl_log(raw_lines: Iterable[bytes], *, rank: int) -> NcclLog:
    """Return what the lines of one rank's log say; of what is said twice the first counts."""
    collected = _ProcessLog()
    for raw in raw_lines:
        line = _log_line(raw)
        if line is not None:
            collected.take(line)
        elif b"NCCL" in raw or b" via " in raw or b"coll channels" in raw:
            collected.take(LogLine("", 0, "INFO", raw[:4096].decode(errors="replace").rstrip()))
    return collected.log(rank)


def nccl_logs(raw_lines: Iterable[bytes]) -> tuple[NcclLog, ...]:
    """Return what a log of several processes says, one for each process that says its rank, by rank."""
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
        self.num_lines = 0
        self.transports: Counter[str] = Counter()
        self.links: dict[str, float] = {}
        self.interfaces: dict[str, None] = {}
        self.settings: dict[str, str] = {}
        self.warnings: dict[str, None] = {}
        self.communicators: dict[str, Communicator] = {}
        self.timings: dict[tuple[int, int], list[tuple[float, dict[str, float]]]] = {}
        self.choices: Counter[tuple[str | None, int, str, str, int | None]] = Counter()
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

    def log(self, rank: int) -> NcclLog:
        world = max((c.num_ranks for c in self.communicators.values()), default=None)
        return NcclLog(
            rank=rank,
            version=self.version,
            channels=self.channels,
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
            collectives=tuple(LoggedCollective(*key, count) for key, count in self.collectives.most_common()),
            num_lines=self.num_lines,
        )

    def _collective(self, text: str) -> None:
        found = _COLLECTIVE.search(text)
        if found is None:
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
        if _NO_DEVICE.search(text):
            self.infiniband_missing = True

    def _communicator(self, comm: str, rank: str, ranks: str, device: str, bus_id: str, comm_id: str | None) -> None:
        if len(self.communicators) < _MAX_COMMUNICATORS:
            self.ranks_of[comm] = int(ranks)
            made = Communicator(comm_id, int(rank), int(ranks), int(device), bus_id, None, {})
            self.communicators.setdefault(comm_id or comm, made)

    def _timed_communicators(self) -> Iterable[Communicator]:
        left = {key: list(times) for key, times in self.timings.items()}
        for c in self.communicators.values():
            times = left.get((c.rank, c.num_ranks))
            total, parts = times.pop(0) if times else (None, {})
            yield replace(c, init_s=total, init_parts_s=parts)

    def _named_choices(self) -> Iterable[Choice]:
        by_size: dict[int, set[str]] = {}
        for op, size, _ in self.collectives:
            if size is not None:
                by_size.setdefault(size, set()).add(op)
        for (said, size, algorithm, protocol, channels), count in self.choices.most_common():
            of_size = by_size.get(size, set())
            named = said or (next(iter(of_size)) if len(of_size) == 1 else None)
            yield Choice(named, size, algorithm, protocol, channels, count)


def _count(counter: Counter[_K], key: _K, most: int) -> None:
    if key in counter or len(counter) < most:
        counter[key] += 1


# NVIDIA's own report files through NVIDIA's own programs, where they are installed.
#
#     x.nsys-rep  --nsys export-->  sqlite        x.ncu-rep  --ncu --import-->  CSV
#
# The programs are given a file and an output, never a shell line; they have MAX_SECONDS.

_MAX_SECONDS = 3600
# characters of what a program says that are shown
_SAID = 200
_NAMES = {"nsys": "Nsight Systems", "ncu": "Nsight Compute"}
_BY_HAND = {
    "nsys": "nsys export --type=sqlite --include-blobs=true {}",
    "ncu": "ncu --import {} --csv --page raw",
}


def exported_report(path: Path, *, cache_folder: Path | None = None, keep: bool = True) -> Path:
    """Return the sqlite export of a `.nsys-rep`; made once where it may be kept.

    It lies in `.stepscope` beside the report, in `cache_folder`, or where neither can be written to among the temporary
    files.
    """
    return _exported(path, cache_folder or path.parent / CACHE_FOLDER, "sqlite", export_nsys, keep=keep)


def exported_metrics(path: Path) -> Path:
    """Return a `.ncu-rep` as CSV, made once in `.stepscope` beside it, or among the temporary files."""
    return _exported(path, path.parent / CACHE_FOLDER, "csv", export_ncu, keep=True)


def _exported(path: Path, folder: Path, ending: str, export: Callable[[Path, Path], None], *, keep: bool) -> Path:
    status = Stream(path).path.stat()
    key = f"{path.absolute()} {status.st_size} {status.st_mtime_ns}".encode(errors="surrogateescape")
    is_kept = False
    with suppress(OSError):
        is_kept = keep and make_trusted_folder(folder) and os.access(folder, os.W_OK)
    parent = folder if is_kept else Path(tempfile.mkdtemp(prefix="stepscope-export-"))
    target = parent / f"{path.name}.{digest_of(key, 12)}.{ending}"
    if not is_trusted_file(target):
        export(path, target)
        target.chmod(0o600)
    return target


def export_nsys(path: Path, target: Path) -> None:
    """Write the sqlite export of a `.nsys-rep`; a `TraceError` where `nsys` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        out = Path(made, "export.sqlite")
        options = ["export", "--type=sqlite", "--include-blobs=true", "--force-overwrite=true"]
        _run("nsys", [*options, f"--output={out}", str(path.absolute())], path, Path(made))
        if not out.is_file():
            raise TraceError(f"{printable(str(path))}: nsys said it was done and wrote nothing; run it by hand")
        out.replace(target)


def export_ncu(path: Path, target: Path) -> None:
    """Write a `.ncu-rep` as CSV; a `TraceError` where `ncu` is missing or fails."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".export-") as made:
        done = _run("ncu", ["--import", str(path.absolute()), "--csv", "--page", "raw"], path, Path(made))
    with atomic_write(target) as f:
        f.write(done)


def require_tool(tool: str, path: Path) -> str:
    """Return where a program lies; a `TraceError` that says what to do with the file where it is not installed."""
    program = shutil.which(tool)
    if program is None:
        raise TraceError(
            f"{printable(str(path))}: only {_NAMES[tool]} reads this format, and {tool} is not on PATH; where it is, "
            f"run {_BY_HAND[tool].format(printable(path.name))} and give what it writes"
        )
    return program


def _run(tool: str, arguments: list[str], path: Path, folder: Path) -> bytes:
    import subprocess  # only where there is one to run

    program = require_tool(tool, path)
    shown, by_hand = printable(str(path)), _BY_HAND[tool].format(printable(path.name))
    try:
        done = subprocess.run(
            [program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_MAX_SECONDS,
            cwd=folder,
            env={**os.environ, "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TraceError(f"{shown}: {tool} took more than {_MAX_SECONDS} s; run {by_hand}") from error
    except OSError as error:
        raise TraceError(f"{shown}: {tool} cannot be started: {error.strerror}; run {by_hand}") from error
    if done.returncode:
        said = printable((done.stderr or done.stdout).decode(errors="replace").strip()[-_SAID:])
        raise TraceError(f"{shown}: {tool} could not export it (exit code {done.returncode}): {said}")
    return done.stdout


# Detection of reports and exports by name or first bytes.

NSYS_REPORT, NCU_REPORT = ".nsys-rep", ".ncu-rep"
MAGIC = b"SQLite format 3\0"
MAX_FILE_BYTES = 1 << 42


def is_sqlite(path: Path) -> bool:
    """Return whether a regular file begins as an sqlite file does; False where it is none or cannot be read."""
    try:
        with open_side_file(path, max_bytes=MAX_FILE_BYTES) as f:
            return f.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


# Metrics of kernels from the CSV of Nsight Compute, whichever of its forms it has.
#
#     long    a row per launch and metric      ..., "Kernel Name", ..., "Metric Name", "Metric Unit", "Metric Value"
#     wide    a row per launch, a column per metric, the units in the first row (`--page raw`)
#     old     long, without block, grid, device and CC
#
# Lines before the header (`==PROF== ...`) are skipped. Numbers are written in the locale of whoever ran it: `1,234.5`
# or `1.234,5`; all numbers of a file together tell which.

# Metric names of Nsight Compute, old and new, raw and readable.
#
# occupancy      sm__warps_active.avg.pct_of_peak_sustained_active            Achieved Occupancy
# DRAM use       dram__throughput.avg.pct_of_peak_sustained_elapsed           DRAM Throughput (%)
# tensor pipe    sm__pipe_tensor*_cycles_active.avg.pct_of_peak_sustained_*
# SM use         sm__throughput.avg.pct_of_peak_sustained_elapsed             Compute (SM) Throughput, SOL SM
# stalls         smsp__average_warps_issue_stalled_<reason>_per_issue_active.ratio, and the sampled ones

# some percentages of peak go past 100 by a little; none by as much
_MAX_PERCENT = 1000.0

_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_DRAM = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
)
_SM = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
    "SM Throughput",
    "SOL SM",
    "SM [%]",
)
_MEMORY = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "SOL Memory",
    "Memory [%]",
)
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_BYTES_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_TENSOR = re.compile(r"^sm__(?:inst_executed_)?pipe_tensor\w{0,60}\.avg\.pct_of_peak_sustained_(?:active|elapsed)$")
_STALL = re.compile(
    r"^smsp__(?:average_warps_issue_stalled_(\w{1,40}?)_per_issue_active\.ratio"
    r"|average_warp_latency_issue_stalled_(\w{1,40}?)\.ratio|pcsamp_warps_issue_stalled_(\w{1,40}?)(?:\.sum)?)$"
)
# a warp that issued, or could have, is not stalled
_NO_STALL = {"selected", "not_selected", "selected_not_issued"}
_NS = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond", ""), 1.0),
    **dict.fromkeys(("us", "usecond", "microsecond"), 1e3),
    **dict.fromkeys(("ms", "msecond", "millisecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
_BYTE_UNIT = re.compile(r"^([KMGT]i?|)(?:byte|B)$", re.IGNORECASE)


@dataclass(frozen=True)
class KernelMetrics:
    """One launch as Nsight Compute measured it. None where the metric was not collected."""

    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    device: int | None
    duration_ns: float | None
    occupancy_pct: float | None
    #: of the peak of the busiest unit of the multiprocessors
    sm_pct: float | None
    #: of the peak of the busiest part of the memory system
    memory_pct: float | None
    dram_pct: float | None
    #: of the tensor pipe's peak
    tensor_pct: float | None
    dram_bytes: float | None
    #: reasons why warps waited, with their share, the most frequent first
    stalls: tuple[tuple[str, float], ...]


_READ = frozenset((*_OCCUPANCY, *_DRAM, *_SM, *_MEMORY, *_DURATION, "dram__bytes.sum", *_BYTES_PARTS))


def _is_read(metric: str) -> bool:
    return metric in _READ or bool(_TENSOR.match(metric) or _STALL.match(metric))


def _kernel_metrics(
    name: str,
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
    device: int | None,
    values: Mapping[str, tuple[float, str]],
) -> tuple[KernelMetrics, int]:
    bad: list[str] = []
    tensor = [value for metric, (value, _) in values.items() if _TENSOR.match(metric)]
    sums = [_size(values, metric, bad) for metric in _BYTES_PARTS]
    parts = sum(known) if len(known := [size for size in sums if size is not None]) == len(sums) else None
    whole = _size(values, "dram__bytes.sum", bad)
    metrics = KernelMetrics(
        name=name,
        grid=grid,
        block=block,
        device=device,
        duration_ns=_duration(values, bad),
        occupancy_pct=_percent(values, _OCCUPANCY, bad),
        sm_pct=_percent(values, _SM, bad),
        memory_pct=_percent(values, _MEMORY, bad),
        dram_pct=_percent(values, _DRAM, bad),
        tensor_pct=_checked(max(tensor), _MAX_PERCENT, "tensor", bad) if tensor else None,
        dram_bytes=whole if whole is not None else parts,
        stalls=_stalls(values),
    )
    return metrics, len(bad)


def _percent(values: Mapping[str, tuple[float, str]], names: tuple[str, ...], bad: list[str]) -> float | None:
    for name in names:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in ("%", ""):  # `Memory Throughput` is also bytes per second
            return _checked(value, _MAX_PERCENT, name, bad)
    return None


def _duration(values: Mapping[str, tuple[float, str]], bad: list[str]) -> float | None:
    for name in _DURATION:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in _NS:
            return _checked(value * _NS[unit.strip()], 1 << 60, name, bad)
    return None


def _size(values: Mapping[str, tuple[float, str]], name: str, bad: list[str]) -> float | None:
    value, unit = values.get(name, (None, ""))
    found = _BYTE_UNIT.match(unit.strip() or "byte")
    if value is None or found is None:
        return None
    scale = found.group(1)
    return _checked(value * _SCALE.get(scale[:1].upper() + scale[1:].lower(), 1.0), 1 << 60, name, bad)


def _stalls(values: Mapping[str, tuple[float, str]]) -> tuple[tuple[str, float], ...]:
    families: list[dict[str, float]] = [{}, {}, {}]
    for metric, (value, _) in values.items():
        found = _STALL.match(metric)
        if found and value > 0:
            family = next(i for i, reason in enumerate(found.groups()) if reason)
            families[family][found.group(family + 1)] = value
    reasons = next((f for f in families if f), {})
    reasons = {reason: value for reason, value in reasons.items() if reason not in _NO_STALL}
    total = sum(reasons.values())
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple((reason, value / total) for reason, value in ordered)


def _checked(value: float, most: float, name: str, bad: list[str]) -> float | None:
    if 0 <= value <= most:
        return value
    bad.append(name)
    return None


# Numbers in any locale.
#
# 1,234.5   1234.5   1'234.5        the point is the decimal mark
# 1.234,5   1234,5   1 234,5        the comma is
# 1,234                             either: the other numbers of the file tell

_MAX_CHARACTERS = 64
_NUMERAL = re.compile(r"^[+-]?[\d.,'\s\u00a0\u202f]+(?:[eE][+-]?\d{1,3})?$")
_GROUPS = re.compile(r"['\s\u00a0\u202f]")


def marks_of(text: str) -> str:
    """Return the decimal mark that one number must have, nothing where it could be either or is no number.

    >>> marks_of("12,5"), marks_of("1.234,5"), marks_of("1,234"), marks_of("1,234,567")
    (',', ',', '', '.')
    """
    plain = text.strip()
    if len(plain) > _MAX_CHARACTERS or not _NUMERAL.match(plain):
        return ""
    plain = re.split(r"[eE]", _GROUPS.sub("", plain))[0]
    points, commas = plain.count("."), plain.count(",")
    if points and commas:
        return "." if plain.rfind(".") > plain.rfind(",") else ","
    if points + commas != 1:  # several of one kind are groups of thousands
        return "" if not points + commas else "," if points > 1 else "."
    sign = "." if points else ","
    whole, _, rest = plain.partition(sign)
    groups_of_three = len(rest) == 3 and 1 <= len(whole.lstrip("+-")) <= 3 and whole.lstrip("+-") != "0"
    return "" if groups_of_three else sign


def number(text: str, mark: str) -> float | None:
    """Return a number, None where the text holds none or one that is not finite.

    >>> number("1.234,5", ","), number("1,234.5", "."), number("n/a", "."), number("1e999", ".")
    (1234.5, 1234.5, None, None)
    """
    plain = text.strip()
    if len(plain) > _MAX_CHARACTERS or not _NUMERAL.match(plain):
        return None
    plain = _GROUPS.sub("", plain).replace("," if mark == "." else ".", "")
    try:
        value = float(plain.replace(mark, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


MAX_BYTES = 1 << 30
_MAX_LAUNCHES = 200_000
_ID, _NAME, _METRIC, _UNIT, _VALUE = "ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_DETAILS = ("Block Size", "Grid Size", "Device", "Process ID")
_NO_METRIC = {
    _ID, _NAME, *_DETAILS, "Process Name", "Host Name", "Kernel Time", "Context", "Stream", "CC", "Section Name",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
_SIZES = re.compile(r"\d{1,12}")


class _Launch(NamedTuple):
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    device: int | None
    #: `(number as written, unit)` by metric
    values: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class NcuFile:
    """The launches in one file, in the order they ran."""

    path: Path
    launches: tuple[KernelMetrics, ...]
    #: values that are no numbers, or numbers that cannot be
    unusable: int


def is_ncu_csv(start: bytes) -> bool:
    """Return whether a file that begins like this is CSV of Nsight Compute."""
    return _header_in(start.decode(errors="replace").splitlines()) is not None


def read_ncu_csv(path: Path) -> NcuFile:
    """Return the launches of a CSV file of Nsight Compute; an `InputError` where it is none or damaged."""
    shown = printable(str(path))
    try:
        lines = (line.decode("utf-8-sig", errors="replace") for line in side_file_lines(path, max_bytes=MAX_BYTES))
        marks: set[str] = set()
        found = _launches(lines, marks)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from error
    except csv.Error as error:
        raise InputError(f"{shown}: is no CSV that can be read ({error}); write it again with ncu --csv") from error
    if found is None:
        raise InputError(f"{shown}: has no header of Nsight Compute's CSV; write it with ncu --csv (and --page raw)")
    mark = next(iter(marks - {""}), ".")
    if len(marks - {""}) > 1:
        raise InputError(f"{shown}: its numbers are written in two ways (1,5 and 1.5); write it again with LC_ALL=C")
    unusable, out = 0, []
    for launch in found:
        values = {}
        for metric, (text, unit) in launch.values.items():
            value = number(text, mark)
            if value is None:
                unusable += 1
            else:
                values[metric] = value, unit
        metrics, bad = _kernel_metrics(launch.name, launch.grid, launch.block, launch.device, values)
        unusable += bad
        out.append(metrics)
    return NcuFile(path, tuple(out), unusable)


def _header_in(lines: Sequence[str]) -> list[str] | None:
    for line in lines:
        if line.lstrip("\ufeff").startswith('"ID"'):
            header = next(csv.reader([line.lstrip("\ufeff")]))
            return header if _NAME in header else None
    return None


def _launches(lines: Iterator[str], marks: set[str]) -> list[_Launch] | None:
    """Return the launches of a file with what is written of each, None where there is no header.

    `marks` takes the decimal marks that its numbers must have.
    """
    header = next((found for line in lines if (found := _header_in([line])) is not None), None)
    if header is None:
        return None
    csv.field_size_limit(1 << 20)
    rows = csv.reader(line for line in lines if not line.startswith("=="))
    at = {name: i for i, name in reversed(list(enumerate(header)))}
    return _long(rows, at, marks) if _METRIC in at and _VALUE in at else _wide(rows, header, at, marks)


def _long(rows: Iterator[list[str]], at: dict[str, int], marks: set[str]) -> list[_Launch]:
    launches: dict[tuple[str, str], _Launch] = {}
    for row in rows:
        if len(row) <= at[_VALUE] or not row[at[_METRIC]]:  # rows of rules have no metric
            continue
        key = row[at[_ID]], _cell(row, at, "Process ID")
        if key not in launches:
            if len(launches) == _MAX_LAUNCHES:
                break
            launches[key] = _launch(row, at)
        marks.add(marks_of(row[at[_VALUE]]))
        metric = row[at[_METRIC]]
        if _is_read(metric):
            _keep(launches[key], metric, row[at[_VALUE]], _cell(row, at, _UNIT))
    return list(launches.values())


def _wide(rows: Iterator[list[str]], header: list[str], at: dict[str, int], marks: set[str]) -> list[_Launch]:
    numbers = [i for i, name in enumerate(header) if name not in _NO_METRIC]
    columns = [i for i in numbers if _is_read(header[i])]
    launches: list[_Launch] = []
    units: list[str] = []
    for row in rows:
        if len(row) < len(header):
            continue
        if not row[at[_ID]].strip():
            units = row
            continue
        if len(launches) == _MAX_LAUNCHES:
            break
        launch = _launch(row, at)
        marks.update(marks_of(row[i]) for i in numbers)
        for i in columns:
            if row[i].strip():
                _keep(launch, header[i], row[i], units[i] if units else "")
        launches.append(launch)
    return launches


def _keep(launch: _Launch, metric: str, text: str, unit: str) -> None:
    if metric not in launch.values or (unit == "%" and launch.values[metric][1] != "%"):
        launch.values[metric] = text, unit


def _launch(row: list[str], at: dict[str, int]) -> _Launch:
    block, grid = (_sizes(_cell(row, at, name)) for name in ("Block Size", "Grid Size"))
    device = _sizes(_cell(row, at, "Device"))
    return _Launch(row[at[_NAME]], grid, block, device[0] if device and len(device) == 1 else None, {})


def _cell(row: list[str], at: dict[str, int], name: str) -> str:
    return row[at[name]] if name in at and at[name] < len(row) else ""


def _sizes(text: str) -> tuple[int, ...] | None:
    found = tuple(int(part) for part in _SIZES.findall(text[:100]))
    return found or None
