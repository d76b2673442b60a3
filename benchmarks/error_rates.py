"""How often do `gate`, `tune` and `bench` see a change that is not there, or miss one that is?

    python benchmarks/error_rates.py [--experiments N]        a Markdown table, a few minutes

Every experiment is simulated from recorded step times (`tests/data/step_noise`: 24 clean jobs of two ranks on a loaded
machine, alone, next to steady loops, and next to loops that come and go). The jobs of one load follow each other, so
their level changes within an experiment, and all of them slow down by 20 % over it. Trials take their steps from this
series in the order in which they would have run; a change is planted by scaling the steps of one variant.
"""

import argparse
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from common import HERE, table

from stepscope.contract.rounds import turned
from stepscope.lab.experiment import Trial, run_rounds
from stepscope.lab.regression import BASE, HEAD, REGRESSION, UNDECIDED, judge, looks_of
from stepscope.lab.results.times import over
from stepscope.lab.tune import EQUAL, Candidate, tune

DATA = HERE.parent / "tests" / "data" / "step_noise" / "h200-host.json.gz"
LOADS = ("none", "steady", "bursts")
WARMUP, DRIFT = 10, 0.2
CHANGES = (0.0, 0.05, 0.10, 0.30)
SETTINGS = 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--experiments", type=int, default=200)
    parser.add_argument("--only", default="", help="names that begin so")
    args = parser.parse_args()
    count = args.experiments
    kinds: dict[str, Callable[[Machine, float], tuple[bool, bool]]] = {
        "gate, 64 to 256 turns of 3 steps": gate_turns,
        "gate, 16 to 64 restarts, 16 steps": gate_restarts,
        "tune, 4 settings, 5 rounds of 20 steps": tuned,
        "bench, 4 variants, 3 runs of 50 steps": partial(benched, runs=3, steps=50),
        "bench, 4 variants, 5 runs of 30 steps": partial(benched, runs=5, steps=30),
    }
    rows = []
    for name, experiment in ((n, e) for n, e in kinds.items() if n.startswith(args.only)):
        for load in LOADS:
            rates = []
            for change in CHANGES:
                found = [experiment(Machine(load, seed), change) for seed in range(count)]
                wrong = 100 * sum(false for _, false in found) / count
                right = 100 * sum(right for right, _ in found) / count
                rates.append(f"{wrong:.1f} %" if change == 0 else f"{right:.0f} %")
            rows.append((name, load, *rates))
            print(*rows[-1], sep=" | ", flush=True)
    print(table(["", "load", "false alarms", *(f"{100 * c:.0f} % found" for c in CHANGES[1:])], rows))


class Machine:
    """Step times in the order in which they are taken."""

    def __init__(self, load: str, seed: int) -> None:
        self._rng = np.random.default_rng([seed, LOADS.index(load)])
        jobs = [job for job in json.loads(gzip.decompress(DATA.read_bytes())) if job["load"] == load]
        series = [np.max([rank["dur"] for rank in job["steps"]], axis=0)[WARMUP:] / 1000 for job in jobs]
        self._steps = np.concatenate([series[k] for k in self._rng.permutation(len(series))])
        self._at = int(self._rng.integers(len(self._steps)))
        self._taken = 0

    def take(self, count: int, *, factor: float = 1.0, of: int) -> np.ndarray:
        """Return the next steps; `of` is about how many the experiment takes."""
        chosen = np.arange(self._at, self._at + count) % len(self._steps)
        drift = 1 + DRIFT * (self._taken + np.arange(count)) / of
        self._at, self._taken = self._at + count, self._taken + count
        return self._steps[chosen] * drift * factor

    def trial(self, count: int, *, factor: float, of: int, start: int | None = None) -> Trial:
        times = self.take(count, factor=factor, of=of)
        return Trial(
            np.array([times, np.zeros(count), np.arange(count)]), (1.0,), None, ("s0", "s1", "s2", "s3"), None, start
        )


def gate_turns(machine: Machine, change: float) -> tuple[bool, bool]:
    def rounds() -> Iterator[dict[str, Trial]]:
        for number in range(256):
            order = (BASE, HEAD) if number // 64 % 2 == 0 else (HEAD, BASE)
            factors = {BASE: 1.0, HEAD: 1 + change}
            yield {s: machine.trial(3, factor=factors[s], of=1536, start=number // 64) for s in order}

    return verdict(rounds(), looks_of(64, None))


def gate_restarts(machine: Machine, change: float) -> tuple[bool, bool]:
    def rounds() -> Iterator[dict[str, Trial]]:
        for number in range(64):
            factors = {BASE: 1.0, HEAD: 1 + change}
            order = turned(number, (BASE, HEAD))
            yield {s: machine.trial(16, factor=factors[s], of=2048, start=number) for s in order}

    return verdict(rounds(), looks_of(16, None))


def verdict(rounds: Iterator[dict[str, Trial]], looks: Sequence[int]) -> tuple[bool, bool]:
    def judged(found):
        return judge(found, threshold_pct=5.0, false_alarm_pct=2.0, looks=len(looks))

    found = run_rounds(
        (BASE, HEAD),
        lambda number, order: next(rounds),
        looks=looks,
        undecided=lambda found: (HEAD,) if judged(found)["verdict"] == UNDECIDED else (),
    )
    alarm = judged(found)["verdict"] == REGRESSION
    return alarm, alarm


def tuned(machine: Machine, change: float) -> tuple[bool, bool]:
    settings = [Candidate(f"s{k}", EQUAL, "", {f"s{k}": k}) for k in range(SETTINGS)]

    def run(when: str, candidate: Candidate | None) -> Trial:
        helps = candidate is not None and "s2" in candidate.settings
        return machine.trial(20, factor=1 / (1 + change) if helps else 1.0, of=500)

    keep = tune(settings, run, rounds=5)["keep"]
    kept = keep["name"].split(" + ") if keep else []
    return "s2" in kept, bool(kept) if change == 0 else bool(set(kept) - {"s2"})


def benched(machine: Machine, change: float, *, runs: int, steps: int) -> tuple[bool, bool]:
    samples: dict[int, list[list[float]]] = {k: [] for k in range(4)}
    for run in range(runs):
        for k in turned(run, [str(k) for k in range(4)]):
            factor = 1 + change if k == "2" else 1.0
            samples[int(k)].append(machine.take(steps, factor=factor, of=600).tolist())
    found = [over(samples[k], samples[0], tests=3) for k in (1, 2, 3)]
    called = [one.slower or one.faster for one in found]
    return found[1].slower, any(called) if change == 0 else called[0] or called[2]


if __name__ == "__main__":
    main()
