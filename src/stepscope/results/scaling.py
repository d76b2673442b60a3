"""How well do more ranks help? Efficiency of strong and weak scaling, with its interval over interleaved runs.

strong   the same work shared out:       T1 / (N x TN)
weak     the same work for every rank:   T1 / TN
"""

from collections.abc import Sequence
from typing import Any

from stepscope.dataclass import dataclass
from stepscope.results.times import bench_times, ratio


@dataclass(frozen=True)
class ScalingPoint:
    """One world size of one mode."""

    mode: str
    world_size: int
    median_ns: int | None
    #: of the whole job's throughput over that of the smallest world size
    speedup: float
    efficiency: float
    low: float
    #: 95 % interval of the efficiency
    high: float


def scaling(rows: Sequence[dict[str, Any]]) -> list[ScalingPoint]:
    """Return the efficiency of each row, against the smallest world size of its mode (1, where it was measured)."""
    found = []
    for mode in dict.fromkeys(row["config"]["mode"] for row in rows):
        mine = sorted((r for r in rows if r["config"]["mode"] == mode), key=lambda r: int(r["config"]["world_size"]))
        found += [_scaled(row, mine[0]) for row in mine]
    return found


def _scaled(row: dict[str, Any], first: dict[str, Any]) -> ScalingPoint:
    mode, ranks = row["config"]["mode"], int(row["config"]["world_size"])
    more = ranks / int(first["config"]["world_size"])
    over, low, high = ratio(row["samples_ms"], first["samples_ms"])
    share = more if mode == "strong" else 1.0
    times = bench_times(row["samples_ms"])
    return ScalingPoint(
        mode=mode,
        world_size=ranks,
        median_ns=times.median_ns if times else None,
        speedup=1 / over if mode == "strong" else more / over,
        efficiency=1 / (share * over),
        low=1 / (share * high),
        high=1 / (share * low),
    )
