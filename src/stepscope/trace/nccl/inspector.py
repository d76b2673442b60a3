"""What did NCCL inspector (2.28 and later) measure? Its JSON lines, one collective each, summed by operation and group.

{"header": {"id": "0x7f8c", "comm_name": "dp", "rank": 3, "n_ranks": 8, "nnodes": 1}, "metadata": {...},
 "coll_perf": {"coll": "AllReduce", "coll_sn": 1407, "coll_msg_size_bytes": 17179869184, "coll_exec_time_us": 61974,
               "coll_algobw_gbs": 277.21, "coll_busbw_gbs": 485.11}}
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from stepscope.contract.collectives import op_name
from stepscope.contract.run_folder import json_object
from stepscope.dataclass import dataclass
from stepscope.side_file import is_number

MAX_KINDS = 2_000
_MAX_TEXT = 200
_AMOUNTS = ("msg_size_bytes", "exec_time_us", "busbw_gbs")


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
    busbw_time_sum: float
    """bus bandwidth weighted with time, in GB/s x ns"""
    best_busbw_gb_per_s: float | None

    @property
    def algbw_gb_per_s(self) -> float | None:
        """Return bytes over time."""
        return self.size_bytes / self.time_ns if self.time_ns else None

    @property
    def busbw_gb_per_s(self) -> float | None:
        """Return the mean bus bandwidth over time, None where it was not measured."""
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
            if len(sums) < MAX_KINDS:
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
    size, time_us, busbw = (_amount(perf.get(f"{kind}_{name}")) for name in _AMOUNTS)
    named = perf.get(kind)
    if type(rank) is not int or not isinstance(named, str) or size is None or time_us is None:
        return None
    time_ns = round(1000 * time_us)
    return InspectedOperation(
        rank=rank,
        op=op_name(named[:_MAX_TEXT]),
        group=str(header.get("comm_name") or header.get("id") or "?")[:_MAX_TEXT],
        num_ranks=ranks if type(ranks) is int else None,
        count=1,
        size_bytes=int(size),
        time_ns=time_ns,
        busbw_time_sum=(busbw or 0.0) * time_ns,
        best_busbw_gb_per_s=busbw,
    )


def _amount(found: Any) -> float | None:
    return float(found) if is_number(found, low=0) else None
