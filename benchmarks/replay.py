"""How well does the replay reproduce recorded runs, and predict a step from the others?

    python benchmarks/replay.py RUN [RUN ...]

Each RUN is a folder of traces. `reproduced` replays the recorded steps as they were; `left out` replaces the times of
one step by the mean of those next to it, which it resembles most, and predicts its period; `mean of others` guesses
the period without a replay.
"""

import sys
from dataclasses import fields, replace

import numpy as np

from stepscope.analyze.host.time import HostParts
from stepscope.analyze.replay.graph import build_graph, end_times, step_ends
from stepscope.analyze.replay.program import Program
from stepscope.analyze.replay.replay import Replay, replay_of
from stepscope.analyze.step.periods import step_periods
from stepscope.run.aligned import aligned
from stepscope.run.load import load


def main(paths: list[str]) -> int:
    print(f"{'run':36} {'recorded ms':>11} {'reproduced':>11} {'left out':>9} {'mean of others':>15}")
    columns: list[list[float]] = [[], [], []]
    for path in paths:
        replay = replay_of(aligned(load(path)))
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
    return 0


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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
