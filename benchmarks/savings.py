"""How far off are predicted savings, on recordings whose faults were really fixed, and on the half nobody fitted to?

    python benchmarks/savings.py CORPUS

Each folder in CORPUS holds traces of one run and a `truth.json`: `fault` (the finding's id), `saving_ms` (measured by
fixing it), `step_ms_unprofiled`. `also.json` names cases whose faults were fixed together (`sum`) and findings that
are another name for the same thing. Prints a line per case, then the halves: the cases in the order of their names,
every second one in the other half. What could be fitted is fitted on one half and reported for the other:

    scale     truth / prediction, least squares: 1 where predictions are neither too high nor too low
    width     of the interval's half, as a share of the step, that holds 95 % of the truths
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepscope.analyze.account import account_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import load

_MIN_SAVING_PCT = 5.0
"""of the step: a fault that costs less is not one worth finding"""
_CLOSE = 0.10
_HELD = 0.95


@dataclass(frozen=True)
class Case:
    """One fault, all as shares of the step."""

    name: str
    truth: float
    sure: float
    """twice the standard error of the truth"""
    predicted: float
    low: float
    high: float

    @property
    def error(self) -> float:
        """Return how far the prediction is from the truth."""
        return abs(self.predicted - self.truth)

    @property
    def close(self) -> bool:
        """Return whether it is within a tenth of the step, or within what the truth is unsure by."""
        return self.error <= max(_CLOSE, self.sure)

    @property
    def held(self) -> bool:
        """Return whether the stated interval meets that of the truth."""
        return self.low - self.sure <= self.truth <= self.high + self.sure


def main(corpus: Path) -> int:
    allowed = json.loads((corpus / "also.json").read_text()) if (corpus / "also.json").exists() else {}
    found = [_case(p.parent, allowed) for p in sorted(corpus.glob("*/truth.json"))]
    cases = [c for c in found if c is not None]
    print(f"{'case':32} {'truth %':>8} {'predicted %':>12} {'interval':>14} {'error':>7}")
    for c in cases:
        marks = ("" if c.close else "  off") + ("" if c.held else "  outside")
        interval = f"{100 * c.low:.0f} to {100 * c.high:.0f}"
        print(f"{c.name:32} {100 * c.truth:8.1f} {100 * c.predicted:12.1f} {interval:>14} {100 * c.error:7.1f}{marks}")
    print(f"\n{_told(cases)}\n")
    halves = cases[::2], cases[1::2]
    print(f"{'fitted on':>10} {'reported for':>13} {'scale':>6} {'width':>6} {'as it is':>9} {'scaled':>7} {'held':>7}")
    for fitted, told in (("first", "second"), ("second", "first")):
        mine, other = halves if fitted == "first" else halves[::-1]
        scale, width = _scale(mine), _width(mine)
        errors = [np.mean([abs(s * c.predicted - c.truth) for c in other]) for s in (1.0, scale)]
        held = sum(abs(c.predicted - c.truth) <= width + c.sure for c in other)
        row = f"{scale:6.2f} {100 * width:5.1f}% {100 * errors[0]:8.1f}% {100 * errors[1]:6.1f}%"
        print(f"{fitted:>10} {told:>13} {row} {held:>3}/{len(other)}")
    return 0


def _case(folder: Path, allowed: dict[str, list[str]]) -> Case | None:
    truth = json.loads((folder / "truth.json").read_text())
    ids = {word.replace("_", "-") for word in truth["fault"].split("+")} - {"none"}
    if not ids or truth.get("saving_pct") is None or truth["saving_pct"] < _MIN_SAVING_PCT:
        return None
    step = truth["step_ms_unprofiled"]
    account = account_of(load([str(folder)], jobs=1, cache=False), unprofiled_ms=step)
    diagnosis = diagnose(account)
    mine = [f for f in diagnosis.findings if f.id in ids]
    together = folder.name in allowed.get("sum", [])
    predicted, low, high = _together(mine) if together else _best(mine)
    ns = step * 1e6
    sure = 2 * truth.get("saving_sem_ms", 0.0) / step
    return Case(folder.name, truth["saving_ms"] / step, sure, predicted / ns, low / ns, min(high / ns, 1.0))


def _best(found: Sequence[Finding]) -> tuple[float, float, float]:
    best = max(found, key=lambda f: f.alone_ns, default=None)
    return (0.0, 0.0, 0.0) if best is None else (best.alone_ns, best.low_ns, best.high_ns)


def _together(found: Sequence[Finding]) -> tuple[float, float, float]:
    saving = sum(f.saving_ns for f in found)
    low = saving - float(np.linalg.norm([f.alone_ns - f.low_ns for f in found]))
    return saving, max(low, 0.0), saving + float(np.linalg.norm([f.high_ns - f.alone_ns for f in found]))


def _told(cases: Sequence[Case]) -> str:
    close, held = sum(c.close for c in cases), sum(c.held for c in cases)
    mean = 100 * float(np.mean([c.error for c in cases]))
    return (
        f"{close} of {len(cases)} within 10 % of the step, {held} of {len(cases)} in their interval, "
        f"mean error {mean:.1f} % of the step"
    )


def _scale(cases: Sequence[Case]) -> float:
    x, y = np.array([c.predicted for c in cases]), np.array([c.truth for c in cases])
    return float(x @ y / (x @ x))


def _width(cases: Sequence[Case]) -> float:
    return float(np.quantile([c.error for c in cases], _HELD, method="higher"))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
