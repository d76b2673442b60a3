"""Variants in turn, round by round, and what became of each: the engine of `gate` and `tune`.

    variants -> rounds in turned order -> trial(variant) -> step times, results, or why it failed -> change

A round has a trial of every variant that is still in; the first variant is what the others are compared with. A trial
may be a job that is started anew, or a turn of a job that is stopped in between. After each look at the rounds, only
undecided variants continue. Ctrl-C ends the rounds early; what has run is judged as it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analyze.steadiness import median_over_ranks
from stepscope.contract.live import TRIAL
from stepscope.contract.rounds import turned
from stepscope.contract.run_folder import json_object_in, rank_file
from stepscope.records import ArrayRecord, dataclass
from stepscope.run.side_files import MISSING, StepLog, step_logs
from stepscope.stats.change import Change, Floats, paired
from stepscope.trace.table import Int64s
from stepscope.units import NS_PER_MS

#: a variant may be judged from
MIN_ROUNDS = 3


@dataclass(frozen=True, eq=False, repr=False)
class Trial(ArrayRecord):
    """What one trial left: its steps, or the reason why there are none."""

    #: rows: step times in ms, on a GPU the device's own; how long each waited for a core, in ms; its number
    steps: Floats = field(default_factory=lambda: np.empty((3, 0)))
    losses: tuple[float | None, ...] = ()
    #: sum, and sum of sizes
    parameters: tuple[float, float] | None = None
    #: settings that changed anything in the job
    took: tuple[str, ...] = ()
    failed: str | None = None
    #: which start of the job it belongs to, where one start has several rounds
    start: int | None = None

    @property
    def step_ms(self) -> float | None:
        """Return the mean step, None for a failed trial: what recurs in some steps only is paid for too."""
        return float(self.steps[0].mean()) if self.failed is None and self.steps.size else None


@dataclass(frozen=True)
class Agreement:
    """Whether a variant computes the same as the first, None if unknown; differences at most, relative."""

    agrees: bool | None
    why: str
    gradient_error: float | None = None
    #: of losses, and of sums over the parameters
    loss_error: float | None = None


@dataclass(eq=False, repr=False)
class Rounds(ArrayRecord):
    """All trials so far, by variant and round; a variant that was left out has the first rounds only."""

    trials: dict[str, list[Trial]]
    #: variants that were given up, with the reason
    out: dict[str, str] = field(default_factory=dict)
    stopped: bool = False

    @property
    def base(self) -> list[Trial]:
        """Return the trials of the first variant."""
        return next(iter(self.trials.values()))

    def pairs(self, name: str) -> list[tuple[Trial, Trial]]:
        """Return the trials of the first variant and of another, of rounds in which neither failed."""
        both = zip(self.base, self.trials[name], strict=False)
        return [(a, b) for a, b in both if a.step_ms is not None and b.step_ms is not None]

    def change(
        self, name: str, *, of: Callable[[Floats], Floats] = lambda steps: steps[0], **how: Any
    ) -> Change | None:
        """Return the change from the first variant; None below `MIN_ROUNDS`. `of` are the times to compare."""
        pairs = self.pairs(name)
        if len(pairs) < MIN_ROUNDS:
            return None
        starts = [k if a.start is None else a.start for k, (a, _) in enumerate(pairs)]
        return paired([of(a.steps) for a, _ in pairs], [of(b.steps) for _, b in pairs], starts=starts, **how)


def run_rounds(
    names: Sequence[str],
    run_round: Callable[[int, list[str]], Mapping[str, Trial]],
    *,
    looks: Sequence[int],
    undecided: Callable[[Rounds], Sequence[str]],
    why_out: Callable[[Rounds, str], str | None] = lambda rounds, name: None,
) -> Rounds:
    """Return the rounds of all variants.

    `looks` are numbers of rounds after which only the `undecided` variants continue; `why_out` is asked after each
    round. `run_round` gets the number of a round and its variants in order.
    """
    found = Rounds({name: [] for name in names})
    active = list(names[1:])
    for look in looks:
        while active and len(found.base) < look:
            try:
                trials = run_round(len(found.base), turned(len(found.base), [names[0], *active]))
            except KeyboardInterrupt:
                if len(found.base) < MIN_ROUNDS:
                    raise
                found.stopped = True
                return found
            for name, trial in trials.items():
                found.trials[name].append(trial)
            found.out |= {name: why for name in active if (why := why_out(found, name)) is not None}
            active = [name for name in active if name not in found.out]
        active = [name for name in undecided(found) if name not in found.out]
    return found


def trial_in(folder: Path | None, *, ended: str | None = None, warmup: int = 0, least: int = 1) -> Trial:
    """Return what a trial left in its run folder; `ended` is the reason of an unexpected end.

    Only unprofiled steps after the first `warmup` count, and there have to be `least` of them.
    """
    logs = step_logs(folder) if folder is not None else ()
    if ended is not None or folder is None or not logs:
        return Trial(failed=ended or "no step of it was recorded")
    steps = _steps(logs, warmup)
    if steps.shape[1] < least:
        return Trial(steps, failed=f"only {steps.shape[1]} steps after the first {warmup} were recorded")
    noted = json_object_in(folder / rank_file(logs[0].rank, TRIAL))
    return Trial(
        steps,
        _losses(noted.get("losses")),
        _sums(noted.get("parameters")),
        tuple(name for name in noted.get("took") or () if isinstance(name, str)),
    )


def _steps(logs: Sequence[StepLog], warmup: int) -> Floats:
    rows = [_times(log, warmup) for log in logs]
    times, waits = (median_over_ranks([(number, one[k]) for number, *one in rows], source="") for k in range(2))
    if times is None or waits is None:
        return np.empty((3, 0))
    return np.array([times.dur_ns / NS_PER_MS, waits.dur_ns / NS_PER_MS, times.step])


def _times(log: StepLog, warmup: int) -> tuple[Int64s, Int64s, Int64s]:
    kept = log.unprofiled & (log.dur_ns > 0) & (log.step >= warmup)
    timed = kept & (log.device_ns != MISSING)
    if 2 * timed.sum() > kept.sum():  # the host of a GPU runs ahead of it
        times, kept = log.device_ns, timed
    else:
        times = log.dur_ns
    return log.step[kept], times[kept], np.nan_to_num(log.column("cpu.delay_ns"))[kept].astype(np.int64)


def _losses(found: Any) -> tuple[float | None, ...]:
    return tuple(_number(one) for one in found) if isinstance(found, list) else ()


def _sums(found: Any) -> tuple[float, float] | None:
    if not isinstance(found, Mapping):
        return None
    total, size = _number(found.get("sum")), _number(found.get("size"))
    return None if total is None or size is None else (total, size)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
