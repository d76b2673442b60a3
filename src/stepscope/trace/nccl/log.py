"""What does NCCL's debug log say of a rank: version, topology, channels, transports, algorithms, collectives, warnings?

Lines are read one by one; what is kept of them is counted, not listed, so that a log of any size takes the same memory.
The algorithm is what NCCL says it chose, never what a kernel's name suggests.
"""

from collections import Counter
from collections.abc import Iterable
from typing import TypeVar

from stepscope.contract.collectives import ALL_GATHER, REDUCE_SCATTER, op_name
from stepscope.trace.nccl import lines as of
from stepscope.trace.nccl.lines import LogLine, log_line
from stepscope.trace.nccl.said import Choice, Communicator, LoggedCollective, NcclLog

MAX_WARNINGS = 20
MAX_KINDS = 64
"""of transports, links and settings"""
MAX_SIZES = 4_000
"""operations and sizes that are told apart"""
MAX_PROCESSES = 1_000
MAX_COMMUNICATORS = 200

K = TypeVar("K")


def nccl_log(raw_lines: Iterable[bytes], *, rank: int) -> NcclLog:
    """Return what the lines of one rank's log say; of what is said twice the first counts."""
    collected = _ProcessLog()
    for raw in raw_lines:
        line = log_line(raw)
        if line is not None:
            collected.take(line)
        elif b"NCCL" in raw or b" via " in raw or b"coll channels" in raw:
            collected.take(LogLine("", 0, "INFO", raw[:4096].decode(errors="replace").rstrip(), None))
    return collected.log(rank)


def nccl_logs(raw_lines: Iterable[bytes]) -> tuple[NcclLog, ...]:
    """Return what a log of several processes says, one for each process that says its rank, by rank."""
    by_process: dict[tuple[str, int], _ProcessLog] = {}
    for raw in raw_lines:
        line = log_line(raw)
        if line is None:
            continue
        key = (line.host, line.pid)
        if key in by_process or len(by_process) < MAX_PROCESSES:
            by_process.setdefault(key, _ProcessLog()).take(line)
    known = [(c.rank_of_world(), c) for c in by_process.values()]
    ranked = sorted(((r, c) for r, c in known if r is not None), key=lambda pair: pair[0])
    version = next((c.version for c in by_process.values() if c.version), None)
    for _, collected in ranked:
        collected.version = collected.version or version  # one rank prints it for all
    return tuple(collected.log(rank) for rank, collected in ranked)


class _ProcessLog:
    """What has been read so far of one process."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.host: str | None = None
        self.channels: int | None = None
        self.network: str | None = None
        self.nodes: tuple[int, int, int, int] | None = None
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
        """Keep what one line says."""
        self.num_lines += 1
        text = line.text
        self.host = self.host or line.host or None
        if line.level == "WARN" or "NCCL WARN " in text:
            said = text.partition("NCCL WARN ")[2] or text
            if len(self.warnings) < MAX_WARNINGS:
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
        """Return the rank in the largest communicator, None where the log names none."""
        if self.communicators:
            return max(self.communicators.values(), key=lambda c: c.num_ranks).rank
        return self.nodes[0] if self.nodes else None

    def log(self, rank: int) -> NcclLog:
        """Return it all."""
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
        found = of.COLLECTIVE.search(text)
        if found is None:
            return
        op, kind = op_name(found["op"]), int(found["type"])
        ranks = int(found["ranks"]) if found["ranks"] else self.ranks_of.get(found["comm"])
        size = int(found["count"]) * of.TYPE_BYTES[kind] if kind < len(of.TYPE_BYTES) else None
        if size is not None and op in (ALL_GATHER, REDUCE_SCATTER):
            size = size * ranks if ranks else None  # the count is one rank's share
        _count(self.collectives, (op, size, ranks), MAX_SIZES)

    def _choice(self, text: str) -> None:
        found = of.TUNING.search(text)
        if found is None:
            return
        channels = int(found["high"]) - int(found["low"]) + 1 if found["high"] is not None else None
        op = op_name(found["op"]) if found["op"] else None
        names = (of.algorithm_name(found["algo"]), of.protocol_name(found["proto"]))
        _count(self.choices, (op, int(found["bytes"]), *names, channels), MAX_SIZES)

    def _transport(self, text: str) -> None:
        for path in of.VIA.findall(text):
            _count(self.transports, of.transport_name(path), MAX_KINDS)

    def _rest(self, text: str) -> None:
        if self.version is None and (found := of.VERSION.search(text)):
            self.version = found[1]
        elif self.channels is None and (found := of.CHANNELS.search(text)):
            self.channels = int(found[1])
        elif self.network is None and (found := of.NETWORK.search(text)):
            self.network = found[1]
        elif found := of.INIT.search(text):
            self._communicator(*found.groups())
        elif found := of.TIMINGS.search(text):
            parts = {name: float(seconds) for name, seconds in of.TIMING.findall(found[4])[:MAX_KINDS]}
            waiting = self.timings.setdefault((int(found[1]), int(found[2])), [])
            if len(waiting) < MAX_COMMUNICATORS:
                waiting.append((float(found[3]), parts))
        elif found := of.TOPOLOGY.search(text):
            self.bandwidth = self.bandwidth or (float(found[1]), float(found[2]))
        elif found := of.NODES.search(text):
            nodes = tuple(map(int, found.groups()))
            if self.nodes is None or nodes[1] > self.nodes[1]:
                self.nodes = (nodes[0], nodes[1], nodes[2], nodes[3])
        elif found := of.SETTING.search(text):
            if len(self.settings) < MAX_KINDS:
                self.settings[found[1]] = found[2]
        elif found := of.LINK.search(text):
            self.links[found["kind"]] = max(self.links.get(found["kind"], 0.0), float(found["bw"]))
        elif found := of.INTERFACE.search(text):
            if len(self.interfaces) < MAX_KINDS:
                self.interfaces[f"{found[1]}: {found[2].strip()}"] = None
        elif of.RING.match(text):
            self.num_rings += 1
        if of.NO_DEVICE.search(text):
            self.infiniband_missing = True

    def _communicator(self, comm: str, rank: str, ranks: str, device: str, bus_id: str, comm_id: str | None) -> None:
        if len(self.communicators) < MAX_COMMUNICATORS:
            self.ranks_of[comm] = int(ranks)
            made = Communicator(comm_id, int(rank), int(ranks), int(device), bus_id, None, {})
            self.communicators.setdefault(comm_id or comm, made)

    def _timed_communicators(self) -> Iterable[Communicator]:
        """Yield communicators with the times of their making, which are logged right after each."""
        left = {key: list(times) for key, times in self.timings.items()}
        for c in self.communicators.values():
            times = left.get((c.rank, c.num_ranks))
            total, parts = times.pop(0) if times else (None, {})
            yield Communicator(c.id, c.rank, c.num_ranks, c.device, c.bus_id, total, parts)

    def _named_choices(self) -> Iterable[Choice]:
        by_size: dict[int, set[str]] = {}
        for op, size, _ in self.collectives:
            if size is not None:
                by_size.setdefault(size, set()).add(op)
        for (said, size, algorithm, protocol, channels), count in self.choices.most_common():
            of_size = by_size.get(size, set())
            named = said or (next(iter(of_size)) if len(of_size) == 1 else None)
            yield Choice(named, size, algorithm, protocol, channels, count)


def _count(counter: Counter[K], key: K, most: int) -> None:
    """Count one more of a kind, as long as there are not too many kinds."""
    if key in counter or len(counter) < most:
        counter[key] += 1
