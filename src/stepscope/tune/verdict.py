"""What to keep, from all trials: every setting with its gain, results and reason, and those that are kept together.

A setting is kept where its results agree and its interval lies above 0. Several that are kept were run together too,
and that is what counts: it takes the place of the single ones only where its own interval lies above 0 and it saves
more than the best of them.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean

from stepscope.dataclass import dataclass
from stepscope.tune.agreement import Agreement, agreement
from stepscope.tune.candidates import Candidate
from stepscope.tune.gain import Gain, gain
from stepscope.tune.rounds import Out, pairs
from stepscope.tune.trial import Trial

_MATTERS = 0.05
_UNDECIDED = "may help, but within chance: more --rounds or a quieter machine would tell"


@dataclass(frozen=True)
class JudgedSetting:
    """One setting after its trials."""

    candidate: Candidate
    step_ms: float | None
    gain: Gain | None
    agreement: Agreement | None
    why_not: str | None
    """why it is not kept; None where it is"""

    @property
    def keeps(self) -> bool:
        """Return whether it is worth keeping."""
        return self.why_not is None

    @property
    def undecided(self) -> bool:
        """Return whether more rounds may tell what these do not."""
        return self.why_not == _UNDECIDED


def judged(
    candidate: Candidate, trials: Sequence[Trial], base: Sequence[Trial], *, tried: int, out: Out | None = None
) -> JudgedSetting:
    """Return what came of a setting; `tried` is how many there were."""
    times = pairs(base, trials)
    found = gain([a for a, _ in times], [b for _, b in times], tried=tried)
    good, unchanged = ([t for t in some if t.failed is None] for some in (trials, base))
    agrees = _worst([agreement(t, unchanged, results=candidate.results) for t in good])
    return JudgedSetting(
        candidate,
        fmean(b for _, b in times) if times else None,
        found,
        agrees,
        out.why if out is not None else _why_not(found, agrees),
    )


def best(single: Sequence[JudgedSetting], both: JudgedSetting | None) -> JudgedSetting | None:
    """Return what to keep: all together, else the best single one; None where nothing is worth it."""
    kept = sorted((j for j in single if j.keeps and j.gain), key=lambda j: -(j.gain.share if j.gain else 0.0))
    if both is not None and both.keeps and both.gain and kept and kept[0].gain:
        return both if both.gain.share > kept[0].gain.share else kept[0]
    return kept[0] if kept else None


def document(kept: JudgedSetting | None, rows: Sequence[JudgedSetting]) -> Mapping[str, object]:
    """Return the verdict as JSON: what is kept, and every setting that was tried."""
    return {"keep": _row(kept) if kept else None, "settings": [_row(j) for j in rows]}


def _worst(found: Sequence[Agreement]) -> Agreement | None:
    """Return the agreement of the trial that is furthest off."""
    order = {False: 0, None: 1, True: 2}
    return min(found, key=lambda a: (order[a.agrees], -(a.apart or 0.0)), default=None)


def _why_not(found: Gain | None, agrees: Agreement | None) -> str | None:
    if found is None:
        return "too few trials ended well"
    if agrees is None or not agrees.agrees:
        return agrees.why if agrees else "nothing to compare"
    if found.beyond_chance:
        return None
    if found.slower:
        return "slower"
    return _UNDECIDED if max(found.share, found.typical) > _MATTERS else "within chance"


def _row(judged: JudgedSetting) -> dict[str, object]:
    c, g, a = judged.candidate, judged.gain, judged.agreement
    return {
        "name": c.name,
        "settings": dict(c.settings),
        "environment": dict(c.environment),
        "in_the_script": c.keep,
        "step_ms": judged.step_ms,
        "gain_pct": 100 * g.share if g else None,
        "gain_low_pct": 100 * g.low if g else None,
        "gain_high_pct": 100 * g.high if g else None,
        "rounds": g.rounds if g else None,
        "results": a.why if a else None,
        "results_apart": a.apart if a else None,
        "kept": judged.keeps,
        "why_not": judged.why_not,
    }
