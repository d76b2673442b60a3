"""What would each recorded transfer take among more ranks?

Groups of data-parallel ranks grow with the job, all others stay as they are. With a calibration, or the run's own
transfers as one, a recorded time changes by the ratio of the two predictions, so that what is particular to this run
stays in it. With links alone there is nothing to compare: the transfer takes what the links give.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.contract.collectives import OPS
from stepscope.cost.collectives.calibration import Calibration, Estimate
from stepscope.cost.collectives.closed_form import Fabric, fastest
from stepscope.cost.collectives.points import OPERATIONS
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank

GROWING = ("ddp", "zero1", "zero2", "fsdp-zero2", "fsdp-zero3", "small", "unknown")
"""kinds of traffic whose groups are the data-parallel ranks"""
LINK_DOUBT = 0.3
"""of a time from links alone, which were not measured"""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(ArrayRecord):
    """Times over the rows of one rank's Collectives, in ns; what does not grow keeps -1."""

    time_ns: Floats
    low_ns: Floats
    high_ns: Floats


def growing_rows(account: Account) -> list[npt.NDArray[np.int64]]:
    """Return per rank the collectives of groups that grow with the job."""
    return [
        np.concatenate([rows for kind, rows in by_kind.items() if kind in GROWING] or [np.empty(0, np.int64)])
        for by_kind in account.strategy.rows
    ]


def scaled_transfers(
    account: Account,
    rows: Sequence[npt.NDArray[np.int64]],
    *,
    factor: float,
    source: Calibration | Fabric,
) -> list[Transfers]:
    """Return per rank what its transfers take with `factor` times the data-parallel ranks."""
    known: dict[tuple[str, int, int], tuple[float, float, float]] = {}
    out = []
    for rank, wait, mine in zip(account.run.ranks, account.shared.wait_ns, rows, strict=True):
        c = rank.collectives
        columns = np.full((3, len(c)), -1.0)
        recorded = (c.end_ns - c.start_ns) - np.maximum(wait, 0)
        for row in mine.tolist():
            op, size, ranks = OPS[c.op[row]], int(c.full_bytes[row]), _group_size(account, rank, row)
            if op not in OPERATIONS or size <= 0 or ranks is None or ranks < 2:
                continue
            if (op, size, ranks) not in known:
                known[op, size, ranks] = _change(source, op, size, ranks, round(ranks * factor))
            times = np.array(known[op, size, ranks])
            columns[:, row] = times if isinstance(source, Fabric) else times * recorded[row]
        out.append(Transfers(*columns))
    return out


def _change(source: Calibration | Fabric, op: str, size: int, ranks: int, wanted: int) -> tuple[float, float, float]:
    """Return time, low and high: absolute from links, as multiples of the recorded one from a calibration."""
    if isinstance(source, Fabric):
        time = fastest(op, size_bytes=size, ranks=wanted, fabric=source).time_ns
        return time, time * (1 - LINK_DOUBT), time * (1 + LINK_DOUBT)
    if wanted == ranks:
        return 1.0, 1.0, 1.0
    before = source.predict(op, size_bytes=size, world_size=ranks)
    after = source.predict(op, size_bytes=size, world_size=wanted)
    ratio = after.time_ns / before.time_ns
    # What the curve misses at this size it misses before and after; only the step between world sizes is in doubt.
    half = np.sqrt(max(_half_width(after) ** 2 - _half_width(before) ** 2, 0.0))
    return ratio, float(ratio * np.exp(-half)), float(ratio * np.exp(half))


def _half_width(estimate: Estimate) -> float:
    return float(np.log(estimate.high_ns / estimate.time_ns))


def _group_size(account: Account, rank: Rank, row: int) -> int | None:
    """Return the ranks of a collective's group; where gloo does not say, the whole job's."""
    c = rank.collectives
    return c.groups[int(c.group[row])].size or account.run.world_size
