"""How often does `stepscope compare` cry wolf, and how often does it miss a slowdown?

    python benchmarks/compare.py [--trials 400] [--run FOLDER]

Two sides of the same job, many times, with noise of 5 %: normal, skewed (lognormal, skewness 1.9) and with spikes
(1 step in 20 takes 18 % longer), each step's noise correlated with the last one's by r. With --run the sides are
drawn, in blocks, from the steps of a recorded run.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import common  # noqa: F401 - makes stepscope importable
import numpy as np
import numpy.typing as npt

from stepscope.analyze.steadiness import log_series
from stepscope.run.side_files import step_logs
from stepscope.stats.robust import difference, slow_start

Floats = npt.NDArray[np.float64]
Draw = Callable[[int], Floats]
STEPS = 200
NOISE = 0.05
SLOWDOWN = 0.03
_SETTLE = 50
_SIGMA = 0.55  # of the lognormal: skewness 1.9


def correlated(rng: np.random.Generator, n: int, r: float) -> Floats:
    """Return n standard normal numbers, each correlated with the last by r."""
    fresh = rng.standard_normal(n + _SETTLE) * np.sqrt(1 - r * r)
    out = np.empty(n + _SETTLE)
    out[0] = fresh[0]
    for i in range(1, len(out)):
        out[i] = r * out[i - 1] + fresh[i]
    return out[_SETTLE:]


def step_times(rng: np.random.Generator, n: int, *, kind: str, r: float) -> Floats:
    """Return step times in ms around 100 with a standard deviation of about 5."""
    z = correlated(rng, n, r)
    if kind == "skewed":
        y = np.exp(_SIGMA * z)
        z = (y - np.exp(_SIGMA**2 / 2)) / np.sqrt((np.exp(_SIGMA**2) - 1) * np.exp(_SIGMA**2))
    elif kind == "spikes":
        z = 0.6 * z + 3.6 * (rng.random(n) < 0.05)
    return 100 * (1 + NOISE * z)


def drawn_from(series: Floats, rng: np.random.Generator, n: int, *, block: int = 20) -> Floats:
    """Return n steps in blocks from one recorded series."""
    starts = rng.integers(0, len(series), -(-n // block))
    return series[((starts[:, None] + np.arange(block)) % len(series)).ravel()[:n]]


def alarms(draw: Draw, *, runs: int, trials: int, slowdown: float, between: float = 0.0, seed: int = 1) -> float:
    """Return the share of trials in which the sides are said to differ; `between` is how much runs differ."""
    rng = np.random.default_rng(seed)
    found = 0
    for _ in range(trials):
        sides = [
            [draw(STEPS) * factor * (1 + between * rng.standard_normal()) for _ in range(runs)]
            for factor in (1.0, 1 + slowdown)
        ]
        found += difference(sides[0], sides[1]).significant
    return found / trials


def row(what: str, draw: Draw, args: argparse.Namespace, *, runs: int = 1, between: float = 0.0) -> None:
    false = alarms(draw, runs=runs, trials=args.trials, slowdown=0.0, between=between)
    found = alarms(draw, runs=runs, trials=args.trials, slowdown=SLOWDOWN, between=between, seed=2)
    print(f"{what:44} {100 * false:10.1f} {100 * found:16.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--run", help="run folder with step logs")
    args = parser.parse_args()
    print(f"{STEPS} steps a side, {args.trials} trials{'':14} false alarms % {100 * SLOWDOWN:.0f} % found in %")
    rng = np.random.default_rng(0)
    for kind in ("normal", "skewed", "spikes"):
        for r in (0.0, 0.3, 0.5):
            row(f"{kind}, r = {r}", partial(step_times, rng, kind=kind, r=r), args)
    for runs in (2, 4):
        row(
            f"{runs} runs a side that differ by 0.5 %",
            lambda n: step_times(rng, n, kind="skewed", r=0.3),
            args,
            runs=runs,
            between=0.005,
        )
    if args.run:
        found = log_series(step_logs(args.run))
        if found is None:
            raise SystemExit(f"no undisturbed steps in {args.run}")
        series = found.dur_ns[slow_start(found.dur_ns) :].astype(float)
        row(f"drawn from {len(series)} recorded steps", lambda n: drawn_from(series, rng, n), args)
    sides = [[step_times(rng, STEPS, kind="skewed", r=0.3)] for _ in range(2)]
    begin = time.process_time()
    for _ in range(10):
        difference(sides[0], sides[1])
    print(f"one difference of {STEPS} steps: {100 * (time.process_time() - begin):.1f} ms CPU")


if __name__ == "__main__":
    main()
