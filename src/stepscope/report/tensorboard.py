"""A folder that TensorBoard reads: each rank's trace for its profiler plugin, and the account as curves over steps.

rank_00003.pt.trace.json.gz              the trace as it was recorded
events.out.tfevents.0000000000.stepscope curves: step time, MFU, losses, budget
"""

import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import PARTS
from stepscope.analyze.efficiency import ACHIEVED, LOSSES, step_losses_ns
from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.records import dataclass
from stepscope.run.load import Run, is_nsight
from stepscope.run.rank import Rank
from stepscope.trace.streams import Stream
from stepscope.units import NS_PER_MS, NS_PER_S

# TensorBoard's event files: numbers over steps, written without TensorBoard.


@dataclass(frozen=True)
class Scalar:
    """One number at one step."""

    tag: str
    step: int
    value: float
    #: when, in seconds since 1970
    wall_s: float


def event_file(scalars: Iterable[Scalar]) -> Iterator[bytes]:
    """Yield an event file with these numbers."""
    listed = sorted(scalars, key=lambda s: (s.wall_s, s.step, s.tag))
    yield version_record(listed[0].wall_s if listed else 0.0)
    for s in listed:
        yield scalars_record(s.step, {s.tag: s.value}, wall_s=s.wall_s)


# TensorBoard knows event files by the word `tfevents` in their names
EVENT_FILE = "events.out.tfevents.0000000000.stepscope"
_GZIP = 31
_CHUNK = 1 << 20

Pieces = Iterable[bytes]


def tensorboard_files(account: Account) -> tuple[list[tuple[str, Pieces]], list[str]]:
    """Return the files of the folder, name and bytes, and what could not be written."""
    files: list[tuple[str, Pieces]] = [(EVENT_FILE, event_file(scalars_of(account)))]
    notes = []
    for rank in account.run.ranks:
        why = _why_not(rank)
        if why:
            notes.append(f"the trace of rank {rank.rank} is not in the folder: {why}")
        else:
            files.append((f"rank_{rank.rank:05d}.pt.trace.json.gz", _trace(rank)))
    return files, notes


def scalars_of(account: Account) -> list[Scalar]:
    """Return the curves: the recorded steps as profiled, mean over ranks, and every step of the step logs."""
    return [*_profiled(account), *_logged(account.run)]


def _profiled(account: Account) -> Iterator[Scalar]:
    losses = step_losses_ns(
        [view.budget for view in account.ranks],
        [view.costs for view in account.ranks],
        step=account.step,
        efficiency=account.efficiency,
        chip=account.chip.chip,
    )
    known = [(i, view.rank, view.budget) for i, view in enumerate(account.ranks) if view.budget is not None]
    by_step: dict[int, list[tuple[int, npt.NDArray[np.float64]]]] = {}
    for k, (i, rank, budget) in enumerate(known):
        ends = account.shared.clocks.shared(i, budget.periods.end_ns)
        rows = np.column_stack((budget.periods.dur_ns, budget.part_ns, *([losses[k]] if losses else []))).astype(float)
        for step, end, row in zip(budget.periods.step.tolist(), ends.tolist(), rows, strict=True):
            if step >= 0:
                by_step.setdefault(int(rank.steps.number[step]), []).append((end, row))
    for number, ranks in by_step.items():
        wall_s = max(end for end, _ in ranks) / NS_PER_S
        for tag, value in _step_values(np.array([row for _, row in ranks]), bool(losses)):
            yield Scalar(tag, number, value, wall_s)


def _step_values(rows: npt.NDArray[np.float64], with_losses: bool) -> Iterator[tuple[str, float]]:
    mean = rows.mean(axis=0)
    yield "step/profiled_ms", mean[0] / NS_PER_MS
    yield "step/slowest_rank_ms", rows[:, 0].max() / NS_PER_MS
    yield from ((f"budget/{part}_ms", ns / NS_PER_MS) for part, ns in zip(PARTS, mean[1:], strict=False))
    if with_losses:
        of_peak = dict(zip(LOSSES, mean[1 + len(PARTS) :] / mean[0], strict=True))
        yield "efficiency/mfu", of_peak[ACHIEVED]
        yield from ((f"waterfall/{loss}_pct", 100 * share) for loss, share in of_peak.items())


def _logged(run: Run) -> Iterator[Scalar]:
    for tag, disturbed in (("step/logged_ms", False), ("step/logged_disturbed_ms", True)):
        by_step: dict[int, list[tuple[int, int]]] = {}
        for log in run.logs:
            keep = (log.unprofiled != disturbed) & (log.dur_ns > 0)
            columns = (log.step[keep].tolist(), log.end_ns[keep].tolist(), log.dur_ns[keep].tolist())
            for step, end, dur in list(zip(*columns, strict=True)):
                by_step.setdefault(step, []).append((end, dur))
        for step, times in by_step.items():
            mean_ns = sum(dur for _, dur in times) / len(times)
            yield Scalar(tag, step, mean_ns / NS_PER_MS, max(end for end, _ in times) / NS_PER_S)


def _why_not(rank: Rank) -> str | None:
    if rank.trace.quality.truncated:
        return "it is cut off, which the plugin cannot read"
    if is_nsight(rank.trace):
        return "it is an export of Nsight Systems, which the plugin cannot read"
    if (rank.trace["offset"] < 0).any():
        return "it is in several files, which the plugin would take for several ranks"
    return None


def _trace(rank: Rank) -> Iterator[bytes]:
    stream = Stream(Path(rank.trace.path))
    packer = zlib.compressobj(wbits=_GZIP)
    for chunk in stream.chunks(_CHUNK):
        yield packer.compress(chunk)
    yield packer.flush()
