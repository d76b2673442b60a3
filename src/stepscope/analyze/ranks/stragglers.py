"""Which ranks make the others wait, how much, how often, and why?

Who is late, and by how much, is told by own times and waits (`lateness.py`); why, by what the late rank does that the
others do not.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.time import data_loading, recorded_events
from stepscope.analyze.ranks.lateness import Lateness, late_ranks
from stepscope.contract.late_ranks import DEFAULT_SCORE, DEFAULT_SLOWDOWN, DEFAULT_WINDOW_STEPS
from stepscope.dataclass import dataclass
from stepscope.intervals import covered_ns, union
from stepscope.run.aligned import AlignedRun
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.stats.middle import median
from stepscope.trace.classify import EventKind

Floats = npt.NDArray[np.float64]

_SAME_OPERATORS = 0.02
_MAIN_CAUSE = 0.5
"""a part that explains at least half of the lateness names the cause"""


@dataclass(frozen=True)
class Straggler:
    """A rank that others wait for."""

    rank: int
    cause: str
    """host, device, data, load or network"""
    late_ns_per_step: float
    """own time beyond the median of the others', mean over the steps"""
    steps_late: int
    num_steps: int
    score: float
    slowdown: float
    """own time / mean own time of the others"""
    evidence: dict[str, float]
    """excess over the others' median in ns per step, by part"""

    @property
    def persistent(self) -> bool:
        """Return whether it was late in most of the steps."""
        return self.steps_late > self.num_steps / 2


def find_stragglers(
    shared: AlignedRun,
    *,
    window_steps: int = DEFAULT_WINDOW_STEPS,
    threshold: float = DEFAULT_SCORE,
    slowdown: float = DEFAULT_SLOWDOWN,
    overhead_ns_per_step: float = 0.0,
) -> list[Straggler]:
    """Return the late ranks, the latest first.

    `overhead_ns_per_step` is what the profiler added to a step: lateness up to that may be the profiler's own and
    does not count.
    """
    late = late_ranks(
        shared.whole,
        window_steps=window_steps,
        threshold=threshold,
        slowdown=slowdown,
        overhead_ns_per_step=overhead_ns_per_step,
    )
    place = {rank.rank: index for index, rank in enumerate(shared.run.ranks)}
    known = [one for one in late if one.rank in place]  # why a rank is late, those tell that are there in full
    compared = (
        np.array([place[r] for r in known[0].compared if r in place], np.int64) if known else np.empty(0, np.int64)
    )
    if len(compared) < 2:
        return []
    parts = _parts(shared.run.ranks, known[0].num_steps)
    return [_with_cause(shared.run, one, place[one.rank], compared, parts) for one in known]


def _with_cause(
    run: Run, late: Lateness, index: int, compared: npt.NDArray[np.int64], parts: dict[str, Floats]
) -> Straggler:
    peers = compared[compared != index]
    excess = {name: float(values[index] - median(values[peers])) for name, values in parts.items()}
    return Straggler(
        rank=late.rank,
        cause=_cause(run, index, int(peers[0]), excess, late.late_ns),
        late_ns_per_step=late.late_ns,
        steps_late=late.steps_late,
        num_steps=late.num_steps,
        score=late.score,
        slowdown=late.slowdown,
        evidence=excess,
    )


def _parts(ranks: Sequence[Rank], last_steps: int) -> dict[str, Floats]:
    """Return per rank what its steps are made of, in ns per step: loading data and computing on the device."""
    return {
        "data": np.array([_data_ns(r, last_steps) for r in ranks]),
        "device": np.array([_device_ns(r, last_steps) for r in ranks]),
    }


def _cause(run: Run, index: int, peer: int, excess: dict[str, float], late_ns: float) -> str:
    """Return the part that explains the lateness; what neither data nor device explains is the host's.

    Without a device the host computes, so that more work shows there.
    """
    mine, other = run.ranks[index], run.ranks[peer]
    if excess["data"] >= _MAIN_CAUSE * late_ns:
        return "data"
    on_device = excess["device"] >= _MAIN_CAUSE * late_ns
    if on_device and _other_shapes(mine, other):
        return "load"
    if (on_device or not mine.has_device) and _more_flops(run, mine, other):
        return "load"
    return "device" if on_device else "host"


def _more_flops(run: Run, mine: Rank, other: Rank) -> bool:
    """Return whether the recorder counted more FLOPs than a peer's for as many operators."""
    flops, theirs = (_counted_flops(run, rank) for rank in (mine, other))
    if not flops or not theirs or flops < DEFAULT_SLOWDOWN * theirs:
        return False
    operators, as_many = (recorded_events(rank).sum() / max(len(rank.steps), 1) for rank in (mine, other))
    return bool(abs(operators - as_many) <= _SAME_OPERATORS * as_many)


def _counted_flops(run: Run, rank: Rank) -> float | None:
    """Return the FLOPs of one step that the recorder counted on a rank."""
    said: Any = run.description.get("ranks")
    for key in (str(rank.rank), "flops", "total"):
        said = said.get(key) if isinstance(said, dict) else None
    return float(said) if isinstance(said, int | float) and said > 0 else None


def _data_ns(rank: Rank, last_steps: int) -> float:
    recent = slice(-last_steps, None)
    return covered_ns(data_loading(rank), rank.steps.start_ns[recent], rank.steps.end_ns[recent]).sum() / last_steps


def _device_ns(rank: Rank, last_steps: int) -> float:
    """Return compute per step: of the device, or of the host's operators where there is no device."""
    if not rank.has_device:
        return 0.0
    work = rank.work
    recent = (work.step >= max(len(rank.steps) - last_steps, 0)) & (work.kind == EventKind.KERNEL)
    return union(work.start_ns[recent], work.end_ns[recent]).total_ns / last_steps


def _other_shapes(rank: Rank, peer_rank: Rank) -> bool:
    """Return whether a rank ran the same operators as a peer on other shapes: more load, not a slower device."""
    mine, peer = _operator_shapes(rank), _operator_shapes(peer_rank)
    names, peer_names = Counter[str](), Counter[str]()
    for (name, _), n in mine.items():
        names[name] += n
    for (name, _), n in peer.items():
        peer_names[name] += n
    same_operators = sum((names - peer_names).values()) <= _SAME_OPERATORS * sum(names.values())
    other = sum(n for key, n in mine.items() if key not in peer)
    return same_operators and other > 0.2 * sum(mine.values())


def _operator_shapes(rank: Rank) -> Counter[tuple[str, str]]:
    """Return how often each operator launched device work on which shapes, per recorded step."""
    op = distinct(rank.work.op_row[(rank.work.op_row >= 0) & (rank.work.step >= 0)])
    names, dims = rank.trace["name"][op], rank.trace.arg("input_dims").at(op, missing=-1)
    pairs, counts = np.unique(np.stack((names.astype(np.int64), dims)), axis=1, return_counts=True)
    return Counter(
        {
            (rank.trace.text(int(n)) or "", rank.trace.text(int(d)) or ""): int(count) // max(len(rank.steps), 1)
            for n, d, count in zip(pairs[0], pairs[1], counts, strict=True)
        }
    )
