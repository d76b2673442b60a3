"""Do ranks have different amounts of work, step by step? Ranks that meet in every step wait for the one with the most.

    imbalance = mean over steps of (the most that a rank computes - what the mean rank computes)

A slow device takes longer for the same work, an uneven load is more work: more threads are launched, or the recorder
counted more FLOPs. Ranks may take turns at it (samples of uneven length), so that over all steps none is the late one.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ranks.lateness import common_steps
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, distinct
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

Floats = npt.NDArray[np.float64]

MIN_IMBALANCE = 0.10
"""of what the mean rank computes: equal work differs by a few percent from rank to rank"""
_MORE_WORK = 1.10
"""times the others' threads: then the load differs, not the device"""
_MIN_SHARE_OF_STEPS = 0.5


@dataclass(frozen=True, eq=False, repr=False)
class UnevenCompute(ArrayRecord):
    """What ranks compute in the steps that all of them recorded."""

    ranks: tuple[int, ...]
    compute_ns: Floats
    """by rank and step, kernels other than communication"""
    threads: Floats
    """by rank and step: of those kernels, 0 where a trace does not say"""

    @property
    def imbalance_ns(self) -> float:
        """Return by how much the rank with most compute exceeds the mean rank, mean over steps."""
        return imbalance_ns(self.compute_ns)

    @property
    def heaviest(self) -> tuple[int, ...]:
        """Return the rank that has most in over half of the steps; none where they take turns."""
        most = np.bincount(self.compute_ns.argmax(axis=0), minlength=len(self.ranks))
        return (self.ranks[int(most.argmax())],) if most.max() > _MIN_SHARE_OF_STEPS * self.compute_ns.shape[1] else ()

    @property
    def is_load(self) -> bool:
        """Return whether the rank with most compute launches more threads than others, in over half of the steps."""
        steps = np.arange(self.compute_ns.shape[1])
        first = self.compute_ns.argmax(axis=0)
        mine = self.threads[first, steps]
        others = (self.threads.sum(axis=0) - mine) / (len(self.ranks) - 1)
        return bool(((mine >= _MORE_WORK * others) & (others > 0)).mean() > _MIN_SHARE_OF_STEPS)


def imbalance_ns(compute_ns: Floats) -> float:
    """Return by how much the rank with most compute exceeds the mean rank, mean over steps, given both ways."""
    return float((compute_ns.max(axis=0) - compute_ns.mean(axis=0)).mean())


def uneven_compute(ranks: Sequence[Rank]) -> UnevenCompute | None:
    """Return what ranks compute per step where they differ by 10 % and their loads do; None where they do not."""
    numbers = common_steps(ranks)
    if len(ranks) < 2 or not len(numbers) or not all(r.has_device and len(r.steps) for r in ranks):
        return None
    if any(r.steps.is_window for r in ranks):
        return None
    kernels = [_kernels(rank, numbers) for rank in ranks]
    each = list(zip(ranks, kernels, strict=True))
    compute_ns = np.array([_sums(at, (r.work.end_ns - r.work.start_ns)[rows], len(numbers)) for r, (rows, at) in each])
    if not imbalance_ns(compute_ns) >= MIN_IMBALANCE * float(compute_ns.mean()) > 0:
        return None
    threads = np.array([_sums(at, _threads(r, r.work.row[rows]), len(numbers)) for r, (rows, at) in each])
    found = UnevenCompute(tuple(r.rank for r in ranks), compute_ns, threads)
    return found if found.is_load else None


def _kernels(rank: Rank, numbers: Int64s) -> tuple[Int64s, Int64s]:
    """Return a rank's kernels in the given steps, and the place of each one's step among them."""
    work, number = rank.work, rank.steps.number
    place = np.where(among(number, numbers), np.searchsorted(numbers, number), -1)
    rows = np.flatnonzero((work.kind == int(EventKind.KERNEL)) & (work.step >= 0))
    at = place[work.step[rows]]
    common = np.flatnonzero(at >= 0)
    return rows[common], at[common]


def _sums(at: Int64s, values: npt.NDArray[Any], count: int) -> Floats:
    return np.bincount(at, values, minlength=count).astype(float)


def _threads(rank: Rank, rows: npt.NDArray[np.int64]) -> Floats:
    """Return how many threads each kernel has: blocks in its grid times threads in a block; 0 where it is not said."""
    out = np.ones(len(rows))
    strings = rank.trace.strings
    for name in ("grid", "block"):
        ids = rank.trace.arg(name).at(rows, missing=-1)
        size_of = np.zeros(len(strings) + 1)  # one more, that of no text, stays 0
        known = [i for i in distinct(ids).tolist() if i >= 0]
        size_of[known] = [_product(strings[i]) for i in known]
        out *= size_of[ids]
    return out


@lru_cache(maxsize=4096)
def _product(text: str) -> float:
    """Return the product of `[64, 2, 1]`, 0 for anything else."""
    words = text.strip("[] ").split(",")
    return float(prod(float(w) for w in words)) if all(w.strip().isdigit() for w in words) else 0.0
