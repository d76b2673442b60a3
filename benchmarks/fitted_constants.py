"""Do predicted savings rest on constants that were fitted to the recordings? Fit on one half, report the other, swap.

    python benchmarks/fitted_constants.py CORPUS

CORPUS as for `savings.py`, and the same halves. Each constant below is tried at half, once and twice its value, one at
a time; the value with the least mean error on one half is the fitted one, and what it does is told for the other half.
Cases of several faults are left out: what their fixes save together is no single rule's.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.saving import saving_of
from stepscope.diagnose.rules import GENERAL, SPECIFIC
from stepscope.run.load import Run, load

_MIN_SAVING_PCT = 5.0
FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Constant:
    """A number of the product that could have been fitted, and every place it is read from."""

    what: str
    places: tuple[tuple[str, str], ...]
    """module and name"""
    in_account: bool = False
    """it changes the account, not only what is made of it"""

    @property
    def value(self) -> float:
        """Return what the product says."""
        module, name = self.places[0]
        return float(getattr(import_module(f"stepscope.{module}"), name))

    @contextmanager
    def times(self, factor: float) -> Iterator[None]:
        """Make the constant so many times as large."""
        value = self.value
        new = type(getattr(import_module(f"stepscope.{self.places[0][0]}"), self.places[0][1]))(factor * value)
        for module, name in self.places:
            setattr(import_module(f"stepscope.{module}"), name, new)
        try:
            yield
        finally:
            for module, name in self.places:
                setattr(import_module(f"stepscope.{module}"), name, type(new)(value))


CONSTANTS = (
    Constant("compute slowed by a transfer beside it", (("analyze.replay.overlap_changes", "_CONTENTION"),)),
    Constant(
        "recording of one host event, ns",
        (("analyze.replay.replay", "RECORDING_COST_NS"), ("analyze.ranks.stragglers", "RECORDING_COST_NS")),
        in_account=True,
    ),
    Constant("launch of a step as a graph, ns", (("analyze.replay.changes", "_GRAPH_LAUNCH_NS"),)),
    Constant("16-bit peak that products reach", (("diagnose.rules.precision", "_REACHED"),)),
    Constant("16-bit peak that fused attention reaches", (("diagnose.rules.memory_bound_attention", "_REACHED"),)),
    Constant("passes that a fused optimizer saves", (("diagnose.rules.optimizer", "_PASSES_SAVED"),)),
)


def main(corpus: Path) -> int:
    told = {p.parent.name: json.loads(p.read_text()) for p in sorted(corpus.glob("*/truth.json"))}
    named = [name for name, truth in told.items() if _has_one_fault(truth)]
    errors = {name: _errors(corpus / name, told[name]) for name in named}
    halves = named[::2], named[1::2]
    print(f"{len(named)} cases; mean error in % of the step")
    print("| constant | value | fitted on | factor | there | other half as it is | other half fitted |")
    print("|---|---|---|---|---|---|---|")
    for i, constant in enumerate(CONSTANTS):
        for which, (mine, other) in (("first", halves), ("second", halves[::-1])):
            best = min(FACTORS, key=lambda f: (round(_mean(errors, mine, i, f), 3), abs(np.log(f))))
            means = (_mean(errors, mine, i, best), _mean(errors, other, i, 1.0), _mean(errors, other, i, best))
            row = (constant.what, f"{constant.value:g}", which, f"{best:g}", *(f"{mean:.1f}" for mean in means))
            print(f"| {' | '.join(row)} |")
    return 0


def _has_one_fault(truth: dict[str, object]) -> bool:
    saved = truth.get("saving_pct")
    fault = str(truth["fault"])
    return fault != "none" and "+" not in fault and isinstance(saved, int | float) and saved >= _MIN_SAVING_PCT


def _mean(errors: dict[str, dict[tuple[int, float], float]], names: Sequence[str], i: int, factor: float) -> float:
    return 100 * float(np.mean([errors[name][i, factor] for name in names]))


def _errors(folder: Path, truth: dict[str, object]) -> dict[tuple[int, float], float]:
    """Return the error of the planted fault's saving, as a share of the step, by constant and factor."""
    step_ms, saved_ms = float(str(truth["step_ms_unprofiled"])), float(str(truth["saving_ms"]))
    finding = str(truth["fault"]).replace("_", "-")
    run = load([str(folder)], jobs=1, cache=False)
    account = account_of(run, unprofiled_ms=step_ms)
    plain = abs(_saving_ms(account, finding) - saved_ms) / step_ms
    out = {}
    for i, constant in enumerate(CONSTANTS):
        for factor in FACTORS:
            if factor == 1.0:
                out[i, factor] = plain
                continue
            with constant.times(factor):
                changed = _again(run, step_ms) if constant.in_account else account
                out[i, factor] = abs(_saving_ms(changed, finding) - saved_ms) / step_ms
    print(folder.name, f"{100 * plain:.1f} %", file=sys.stderr, flush=True)
    return out


def _again(run: Run, step_ms: float) -> Account:
    return account_of(run, unprofiled_ms=step_ms)


def _saving_ms(account: Account, finding: str) -> float:
    """Return what the rules of a finding say that its fix saves alone."""
    assert account.step is not None
    step_ns, best = account.step.step_ns, 0.0
    for rule in (*SPECIFIC, *GENERAL):
        if finding not in rule.finds:
            continue
        for candidate in rule(account):
            try:
                saved = saving_of(account.owned_replay, candidate.fix, step_ns=step_ns).ns
            except CircularWaits:
                continue
            best = max(best, saved if candidate.id == finding else 0.0)
    return best / 1e6


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
