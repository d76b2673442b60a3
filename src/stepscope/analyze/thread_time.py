"""What were all threads doing in the undisturbed steps, by samples, and what blocked the training thread?

    line        the innermost of the user's in the training thread's stack; a sample counts for the time since the last
    blocked     the training thread did not run and is in a call that waits: of a lock, a queue, a sleep
    GIL         the sampling thread itself had to wait for the GIL while another thread used the CPU

The training thread's own waits for a core are in the step log and not among these.
"""

import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.training_step import OUTSIDE, region_times
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.run.core_time import no_core_ns
from stepscope.run.side_files import SampledFrame, StepLog, ThreadSamples
from stepscope.stats.robust import mad_sigma, median, medians, slow_start

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Line = tuple[str, int]

# A wait for the GIL that is none: the clock's own delay. Python lets others have it after 5 ms.
_GIL_WAIT_NS = 1_000_000
# samples: fewer say nothing of who it was
_MIN_SAMPLES = 5
# of one line
_MIN_LONGER = 3
# of the waits, or of the growth: what has less is not its cause; and how much more often it occurs there than else
_MOST, _LIFT = 0.5, 0.25
# share of the samples: a GIL that is taken less often delays no thread
_OFTEN_TAKEN = 0.1
# Steps grow where the last third takes a tenth longer than the first, by more than chance, and the middle is between.
_MIN_GROWING, _GROWN, _GROWTH_ERRORS = 30, 0.1, 5.0
# of a step: what of it does not grow shows the machine's speed
_MIN_REST = 0.05


@dataclass(frozen=True)
class Holder:
    """A thread and the line it was at."""

    thread: str
    file: str
    line: int
    function: str
    is_user: bool
    #: of the waits, or of the samples
    share: float

    @property
    def text(self) -> str:
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(frozen=True, eq=False, repr=False)
class SampledSteps(ArrayRecord):
    """The samples of one rank in undisturbed steps of its log."""

    samples: ThreadSamples
    log: StepLog
    #: which samples
    chosen: npt.NDArray[np.int64]
    #: index of the logged step, and the time that the sample counts for
    step: npt.NDArray[np.int64]
    weight_ns: Floats
    #: by sample: the user's innermost line; None where there is none
    lines: tuple[Line | None, ...]
    #: by sample: whether the training thread was blocked in a call of the user's own
    blocked: Mask
    #: by sample: whether it is in a call that may wait for the device
    for_device: Mask

    def shares(self, among: Mask) -> dict[Line, float]:
        """Return the lines of some samples with their shares of the time, the largest first."""
        found: dict[Line, float] = defaultdict(float)
        for i in np.flatnonzero(among).tolist():
            line = self.lines[i]
            if line is not None:
                found[line] += float(self.weight_ns[i])
        total = float(self.weight_ns[among].sum())
        return {line: ns / total for line, ns in sorted(found.items(), key=lambda one: -one[1])} if total else {}

    def longer(self, more: Mask, less: Mask) -> dict[Line, float]:
        """Return the lines that take longer per step in some steps of the log than in others, most first."""
        totals = []
        for steps in (more, less):
            found: dict[Line, list[float]] = defaultdict(list)
            for i in np.flatnonzero(steps[self.step]).tolist():
                line = self.lines[i]
                if line is not None:
                    found[line].append(float(self.weight_ns[i]))
            totals.append(found)
        count = [max(int((steps & self.log.unprofiled).sum()), 1) for steps in (more, less)]
        grown = {
            line: sum(times) / count[0] - sum(totals[1].get(line, ())) / count[1]
            for line, times in totals[0].items()
            if len(times) >= _MIN_LONGER
        }
        return {line: ns for line, ns in sorted(grown.items(), key=lambda one: -one[1]) if ns > 0}

    def at(self, line: Line) -> Mask:
        return np.array([one == line for one in self.lines], bool)

    def partner(self, among: Mask) -> Holder | None:
        """Return the line of another thread that occurs with some samples and seldom with others; None without one."""
        inside: dict[tuple[int, int], float] = defaultdict(float)
        outside: dict[tuple[int, int], float] = defaultdict(float)
        for i, k in enumerate(self.chosen.tolist()):
            for thread, stack, _ in self.samples.others[k]:
                (inside if among[i] else outside)[thread, stack] += float(self.weight_ns[i])
        total, rest = float(self.weight_ns[among].sum()), float(self.weight_ns[~among].sum())
        if among.sum() < _MIN_SAMPLES or not total:
            return None
        lift = {who: ns / total - outside[who] / max(rest, 1.0) for who, ns in inside.items()}
        best = max(lift, key=lambda who: lift[who], default=None)
        if best is None or inside[best] < _MOST * total or lift[best] < _LIFT:
            return None
        return self._holder(*best, inside[best] / total)

    def gil_holder(self, *, device_busy: float) -> tuple[Holder, float] | None:
        """Return who held the GIL most, and the share of the time for which the training thread had to wait for it.

        That is at most the other thread's CPU time, and at most the time in which the training thread neither ran nor
        waited for a core, in a blocking call or for the device, which is busy for a share of the time.
        """
        s, at = self.samples, self.chosen
        taken = (s.gil_wait_ns[at] >= _GIL_WAIT_NS) & ~s.on[at]
        if taken.sum() < _MIN_SAMPLES or taken.mean() < _OFTEN_TAKEN:
            return None
        used: dict[int, float] = defaultdict(float)
        places: dict[tuple[int, int], float] = defaultdict(float)
        for i, k in enumerate(at.tolist()):
            if k == 0 or s.time_ns[k] - s.time_ns[k - 1] > 2 * self.weight_ns[i]:
                continue
            before = {thread: cpu for thread, _, cpu in s.others[k - 1]}
            for thread, stack, cpu in s.others[k]:
                ran = max(0, cpu - before.get(thread, cpu))
                used[thread] += ran
                if taken[i]:
                    places[thread, stack] += ran
        if not places:
            return None
        thread = max(used, key=lambda who: used[who])
        own = {stack: ns for (who, stack), ns in places.items() if who == thread}
        if not own:
            return None
        stack = max(own, key=lambda one: own[one])
        total = float(self.weight_ns.sum())
        blocked, for_device = (float(self.weight_ns[x].sum()) for x in (self.blocked, self.for_device & ~self.blocked))
        waited = self._waiting_share() - blocked / total - min(for_device / total, device_busy)
        lost = max(0.0, min(waited, used[thread] / total))
        return self._holder(thread, stack, own[stack] / max(sum(own.values()), 1.0)), lost

    def _waiting_share(self) -> float:
        """Return the share of the steps in which the training thread neither ran nor was ready to."""
        log, keep = self.log, np.zeros(len(self.log), bool)
        keep[self.step] = True
        ran, no_core = np.nan_to_num(log.column("cpu.run_ns")), no_core_ns(log)
        if no_core is None:
            return 0.0
        total = float(log.dur_ns[keep].sum())
        return max(0.0, 1 - float(ran[keep].sum() + no_core[keep].sum()) / max(total, 1.0))

    def _holder(self, thread: int, stack: int, share: float) -> Holder:
        frames = [self.samples.frames[i] for i in self.samples.stacks[stack]]
        frame = next((f for f in reversed(frames) if f.is_user), frames[-1] if frames else None)
        if frame is None:
            frame = SampledFrame("an unknown file", 0, "unknown", "", is_user=False)
        return Holder(self.samples.threads[thread], frame.file, frame.line, frame.function, frame.is_user, share)


def sampled_steps(samples: Sequence[ThreadSamples], logs: Sequence[StepLog]) -> tuple[SampledSteps, ...]:
    """Return the samples by rank in the undisturbed steps of the logs; empty where there are too few."""
    by_rank = {log.rank: log for log in logs}
    found = [_sampled(one, by_rank[one.rank]) for one in samples if one.rank in by_rank and len(one)]
    return tuple(one for one in found if one is not None)


def time_by_line(sampled: Sequence[SampledSteps], step_ns: float) -> dict[Line, float]:
    """Return the training threads' time per step by the user's innermost line, in ns, in the mean over ranks."""
    found: dict[Line, float] = defaultdict(float)
    for one in sampled:
        for line, share in one.shares(np.ones(len(one.chosen), bool)).items():
            found[line] += share * step_ns / len(sampled)
    return dict(found)


def _sampled(samples: ThreadSamples, log: StepLog) -> SampledSteps | None:
    order = np.argsort(log.start_ns, kind="stable")
    at = np.searchsorted(log.start_ns[order], samples.time_ns, side="right") - 1
    step = order[np.maximum(at, 0)] if len(order) else np.zeros(0, np.int64)
    if not len(step):
        return None
    inside = (at >= 0) & (samples.time_ns < log.end_ns[step]) & log.unprofiled[step]
    chosen = np.flatnonzero(inside)
    if len(chosen) < _MIN_SAMPLES:
        return None
    stacks = [[samples.frames[i] for i in stack] for stack in samples.stacks]
    number = samples.stack[chosen]
    innermost = [next(((f.file, f.line) for f in reversed(frames) if f.is_user), None) for frames in stacks]
    waits = np.array([_waits(frames) for frames in stacks], bool)
    return SampledSteps(
        samples=samples,
        log=log,
        chosen=chosen,
        step=step[chosen],
        weight_ns=_weights(samples)[chosen],
        lines=tuple(innermost[n] for n in number.tolist()),
        blocked=~samples.on[chosen] & waits[number],
        for_device=~samples.on[chosen] & np.array([_waits_for_device(frames) for frames in stacks], bool)[number],
    )


_WAITS = re.compile(r"\b(acquire|wait|sleep|join|recv|select|poll)\(|^\s*with\b", re.IGNORECASE)
_WAITING_CALLS = frozenset(("acquire", "wait", "wait_for", "get", "put", "join", "result", "_wait_for_tstate_lock"))


def _waits(frames: Sequence[SampledFrame]) -> bool:
    """Return whether a stack ends in a call that waits for another thread or a time, and not for torch."""
    if not frames:
        return False
    last = frames[-1]
    if last.is_user:
        return bool(_WAITS.search(last.text))
    return last.function in _WAITING_CALLS and "/torch/" not in last.file


_DEVICE_WAITS = re.compile(r"\.(backward|item|cpu|tolist|numpy|synchronize)\(")


def _waits_for_device(frames: Sequence[SampledFrame]) -> bool:
    return any(f.is_user and _DEVICE_WAITS.search(f.text) for f in frames[-2:])


def _weights(samples: ThreadSamples) -> Floats:
    """Return the time since the sample before, without pauses in which none were taken."""
    gaps = np.diff(samples.time_ns, prepend=samples.time_ns[:1]).astype(float)
    if len(gaps) > 1:
        gaps[0] = gaps[1]
    half = min(4, (len(gaps) - 1) // 2)
    near = medians(np.lib.stride_tricks.sliding_window_view(np.pad(gaps, half, mode="edge"), 2 * half + 1))
    return np.minimum(gaps, 2 * near + samples.gil_wait_ns)


def growth(log: StepLog, sampled: SampledSteps | None) -> Row | None:
    """Return how the undisturbed steps of a rank grow from third to third; None where they do not.

    A machine that changes its speed changes all of a step alike. So a part of the step has to grow against the rest of
    the same step, and times of later steps are given at the speed of the first third.
    """
    usable = np.flatnonzero(log.unprofiled & (log.dur_ns > 0))
    usable = usable[slow_start(log.dur_ns[usable]) :]
    regions = region_times(log)
    if len(usable) < _MIN_GROWING or not regions:
        return None
    regions[OUTSIDE] = np.maximum(log.dur_ns - sum(regions.values(), np.zeros(len(log))), 0.0)
    thirds = np.array_split(usable, 3)
    early_ns, late_ns = (median(log.dur_ns[one]) for one in (thirds[0], thirds[2]))
    if late_ns < (1 + _GROWN) * early_ns:
        return None
    most_ns, mean_ns, region = 0.0, 0.0, ""
    for name, time in regions.items():
        rest = log.dur_ns - time
        rest_ns = median(rest[thirds[0]])
        if rest_ns < _MIN_REST * early_ns:
            continue  # too little to know the machine's speed by
        known_ns = np.maximum(rest, _MIN_REST * log.dur_ns)
        parts = [rest_ns * time[one] / known_ns[one] for one in thirds]
        first, middle, last = map(median, parts)
        more, error = last - first, sum(mad_sigma(one) / len(one) ** 0.5 for one in (parts[0], parts[2]))
        is_steady = 0.2 * more <= middle - first <= 0.8 * more
        if is_steady and more >= max(_GROWN * early_ns, _GROWTH_ERRORS * error, most_ns):
            most_ns, mean_ns, region = more, (middle + last - 2 * first) / 3, name
    if not region:
        return None
    masks = [np.isin(np.arange(len(log)), one) for one in (thirds[2], thirds[0])]
    lines = sampled.longer(*masks) if sampled is not None else {}
    line, line_ns = next(iter(lines.items()), (None, 0.0))
    grown_ns = median(regions[region][thirds[2]]) - median(regions[region][thirds[0]])
    return Row(
        early_ns=early_ns,
        late_ns=early_ns + most_ns,
        mean_ns=mean_ns,
        line=line if line_ns >= _MOST * grown_ns else None,
        line_ns=line_ns,
        region=region,
    )
