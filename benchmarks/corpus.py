"""Replays and predicted savings of recorded runs.

    python benchmarks/corpus.py replay RUN [RUN ...]
    python benchmarks/corpus.py savings CORPUS
    python benchmarks/corpus.py damaged RUN [RUN ...]

replay: each RUN is a folder of traces. `reproduced` replays the recorded steps as they were; `left out` replaces the
times of one step by the mean of those next to it and predicts its period; `mean of others` guesses it without a replay.

savings: each folder in CORPUS holds traces of one run and a `truth.json`: `fault` (the finding's id), `saving_ms`
(measured by fixing it), `step_ms_unprofiled`. `also.json` names cases whose faults were fixed together (`sum`). Prints
a line per case, then the halves: the cases in the order of their names, every second one in the other half. What could
be fitted is fitted on one half and reported for the other:

    scale     truth / prediction, least squares: 1 if predictions are neither too high nor too low
    width     of the interval's half, as a share of the step, that holds 95 % of the truths

damaged: in a copy of each RUN one of 200 device operations is 5 ms and 50 times longer, or begins 20 ms earlier. Prints
the largest change of a rank's times, as a share of its window, and of a part of the budget, as a share of the step.
"""

import gzip
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import common  # noqa: F401 - makes stepscope importable
import numpy as np

import stepscope
from stepscope.analyze.account import account_of
from stepscope.analyze.host_time import HostParts
from stepscope.analyze.phases import step_periods
from stepscope.analyze.replay.graph import Program, build_graph, end_times, step_ends
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.aligned import aligned
from stepscope.run.load import load

_MIN_SAVING_PCT = 5.0
"""of the step: a fault that costs less is not one worth finding"""
_CLOSE = 0.10
_HELD = 0.95


def main() -> int:
    what, *paths = sys.argv[1:]
    if what == "replay":
        print_replays([Path(path) for path in paths])
    elif what == "savings":
        print_savings(Path(paths[0]))
    elif what == "damaged":
        print_damaged([Path(path) for path in paths])
    else:
        print(__doc__)
    return 0


# Replays


def print_replays(paths: list[Path]) -> None:
    print(f"{'run':36} {'recorded ms':>11} {'reproduced':>11} {'left out':>9} {'mean of others':>15}")
    columns: list[list[float]] = [[], [], []]
    for path in paths:
        replay = replay_of(aligned(load(str(path))))
        if replay is None or len(replay.steps) < 2:
            continue
        recorded = recorded_periods(replay)
        errors = (
            relative(periods(replay, replay.programs), recorded),
            left_out(replay, recorded),
            others(recorded),
        )
        for column, error in zip(columns, errors, strict=True):
            column += [error] if error is not None else []
        shown = "".join(f"{'-' if e is None else f'{100 * e:.1f} %':>12}" for e in errors)
        print(f"{replay.shared.run.name[:36]:36} {recorded.mean() / 1e6:11.2f}{shown}")
    print(f"{'mean':48}" + "".join(f"{100 * float(np.mean(c)):10.1f} %" for c in columns if c))


def recorded_periods(replay: Replay) -> np.ndarray:
    """Return the recorded device period of every step but the first, mean over ranks."""
    rows = []
    for rank in replay.shared.run.ranks:
        found = step_periods(rank)
        assert found is not None
        ends = found.end_ns[np.isin(found.step, np.flatnonzero(np.isin(rank.steps.number, replay.steps)))]
        rows.append(np.diff(ends))
    return np.mean(rows, axis=0)


def periods(replay: Replay, programs: tuple[Program, ...]) -> np.ndarray:
    """Return the replayed periods of the same steps."""
    graph = build_graph(programs, replay.meetings, num_steps=len(replay.steps))
    return np.diff(step_ends(graph, end_times(graph)), axis=1).mean(axis=0)


def relative(predicted: np.ndarray, recorded: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted - recorded) / recorded))


def left_out(replay: Replay, recorded: np.ndarray) -> float | None:
    """Return the mean error over steps, each predicted from the times of the steps next to it."""
    steps = len(replay.steps)
    if steps < 3 or any(len(set(np.bincount(p.step, minlength=steps))) > 1 for p in replay.programs):
        return None
    predicted = [
        periods(replay, tuple(without_step(p, k, steps) for p in replay.programs))[k - 1] for k in range(1, steps)
    ]
    return relative(np.array(predicted), recorded)


def without_step(program: Program, k: int, steps: int) -> Program:
    """Return the program with the times of step `k` replaced by the mean of those next to it."""
    other = [j for j in (k - 1, k + 1) if 0 <= j < steps]

    def mixed(values: np.ndarray, tail_ns: int = 0) -> np.ndarray:
        table = values.reshape(steps, -1).astype(float)
        table[0, 0] += tail_ns  # what other steps have before their first launch, the first step has after its last
        table[k] = table[other].mean(axis=0)
        table[0, 0] -= tail_ns if k else 0
        return np.rint(table).astype(np.int64).reshape(-1)

    parts = [mixed(getattr(program.host, f.name), int(getattr(program.tail, f.name)[0])) for f in fields(HostParts)]
    return replace(program, host=HostParts(*parts), duration_ns=mixed(program.duration_ns))


def others(recorded: np.ndarray) -> float | None:
    if len(recorded) < 2:
        return None
    means = (recorded.sum() - recorded) / (len(recorded) - 1)
    return relative(means, recorded)


# Savings


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


def print_savings(corpus: Path) -> None:
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


# Damaged copies

_TIMES = ("window_ms", "compute_ms", "comm_ms", "idle_ms", "exposed_comm_ms")
_SEEDS = 3


def print_damaged(paths: list[Path]) -> None:
    print(f"{'run':36} {'times %':>8} {'budget %':>9}   worst of {_SEEDS} copies")
    for path in paths:
        times, parts = np.array([_damage(path, seed) for seed in range(_SEEDS)]).max(0)
        print(f"{path.name:36} {times:8.2f} {parts:9.2f}")


def _damage(path: Path, seed: int) -> tuple[float, float]:
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(p.name for p in path.glob("*.json*") if p.name not in ("truth.json", "run.json")):
            data = (path / name).read_bytes()
            trace = json.loads(gzip.decompress(data) if name.endswith(".gz") else data)
            work = [e for e in trace["traceEvents"] if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
            for event in chance.sample(work, max(1, len(work) // 200)):
                longer = chance.random() < 0.5
                event["dur" if longer else "ts"] += 49 * event["dur"] + 5_000 if longer else -20_000
            (Path(folder) / name.removesuffix(".gz")).write_text(json.dumps(trace))
        whole, damaged = (stepscope.load(one).document for one in (path, folder))
    ranks = zip(whole["ranks"], damaged["ranks"], strict=True)
    changes = [abs(a[t] - b[t]) / a["window_ms"] for a, b in ranks for t in _TIMES if a[t] is not None]
    budgets = zip(whole["step"]["budget"], damaged["step"]["budget"], strict=True)
    return 100 * max(changes), max(abs(a["pct"] - b["pct"]) for a, b in budgets)


if __name__ == "__main__":
    sys.exit(main())
