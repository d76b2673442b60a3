"""The whole experiment, round by round, with whoever runs a trial handed in: a job, or a simulation of one.

    1. rounds of the unchanged job and of each setting that is still in
    2. where some may help but could be chance: more rounds of these, and a second look at all their rounds
    3. where several settings are worth keeping: rounds of the unchanged job and of all of them together

All intervals are corrected for the settings tried, the one of them together included. Ctrl-C ends it at any time: what
has run is judged as it is.
"""

from collections.abc import Callable, Sequence
from dataclasses import field

from stepscope.dataclass import dataclass
from stepscope.tune.candidates import Candidate, together
from stepscope.tune.rounds import BASE, Out, order_of, still_in, why_out
from stepscope.tune.trial import Trial
from stepscope.tune.verdict import JudgedSetting, best, judged

_MIN_MORE = 6
"""rounds: fewer hardly narrow an interval that one disturbed round has widened"""

RunTrial = Callable[[str, Candidate | None], Trial]
"""takes what to say of it, and the setting: None for the unchanged job"""


@dataclass(frozen=True)
class Experiment:
    """What came of it."""

    settings: tuple[JudgedSetting, ...]
    combined: JudgedSetting | None
    """those worth keeping, together; None where there were not several"""
    base: tuple[Trial, ...]
    stopped: bool = False
    """whether it was ended before all rounds had run"""

    @property
    def keep(self) -> JudgedSetting | None:
        """Return what to keep, None for nothing."""
        return best(self.settings, self.combined)


@dataclass
class _Series:
    base: list[Trial] = field(default_factory=list)
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    out: dict[str, Out] = field(default_factory=dict)
    stopped: bool = False


def experiment(tried: Sequence[Candidate], run: RunTrial, *, rounds: int) -> Experiment:
    """Return what came of trying these settings, as far as it came."""
    corrected = len(tried) + (len(tried) > 1)
    first = _series(tried, run, rounds=rounds, what="round")
    single = [_judged(c, first, tried=corrected) for c in tried]
    undecided = [j.candidate for j in single if j.undecided]
    if undecided and not first.stopped:
        _go_on(first, undecided, run, rounds=max(rounds, _MIN_MORE), what="undecided, round")
        again = {c.name: _judged(c, first, tried=corrected) for c in undecided}
        single = [again.get(j.candidate.name, j) for j in single]
    kept = sorted((j for j in single if j.keeps), key=lambda j: -(j.gain.share if j.gain else 0.0))
    both = together([j.candidate for j in kept])
    combined = None
    if len(kept) > 1 and both.name != kept[0].candidate.name and not first.stopped:
        second = _series([both], run, rounds=rounds, what="together, round")
        combined = _judged(both, second, tried=corrected)
        first.base += second.base
        first.stopped = second.stopped
    return Experiment(tuple(single), combined, tuple(first.base), first.stopped)


def _series(tried: Sequence[Candidate], run: RunTrial, *, rounds: int, what: str) -> _Series:
    """Return the trials of some rounds; one whose unchanged trial fails tells nothing and is left out by its pairs."""
    series = _Series(trials={c.name: [] for c in tried})
    _go_on(series, tried, run, rounds=rounds, what=what)
    return series


def _go_on(series: _Series, tried: Sequence[Candidate], run: RunTrial, *, rounds: int, what: str) -> None:
    """Add rounds of some settings, all of which have been in every round so far; fewer where the user ends it."""
    by_name = {c.name: c for c in tried}
    for number in range(rounds):
        names = still_in(list(by_name), series.out)
        if not names:
            break
        for name in order_of(number, names):
            try:
                trial = run(f"{what} {number + 1} of {rounds}", by_name.get(name))
            except KeyboardInterrupt:
                series.stopped = True
                return
            (series.base if name == BASE else series.trials[name]).append(trial)
        for name in names:
            if (out := why_out(by_name[name], series.trials[name], series.base)) is not None:
                series.out[name] = out


def _judged(candidate: Candidate, series: _Series, *, tried: int) -> JudgedSetting:
    name = candidate.name
    return judged(candidate, series.trials[name], series.base, tried=tried, out=series.out.get(name))
