"""How well are collective times predicted at sizes and world sizes that were not measured?

    python benchmarks/calibration_accuracy.py FOUR.csv [--left-out FOUR_OTHER_SIZES.csv] [--other-world TWO.csv]

Ours beside plain interpolation of the points, a least-squares line and a line in relative error. Without --left-out
each measured size is predicted from the others, with the neighbours twice as far as in use.
"""

import argparse
from collections.abc import Callable, Sequence

import numpy as np

from stepscope.cost.collectives.alpha_beta import fit
from stepscope.cost.collectives.calibration import calibrate
from stepscope.cost.collectives.points import Point, points_from_csv

MAIN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
Predictor = Callable[[Point], tuple[float, float, float]]


def ours(points: Sequence[Point]) -> Predictor:
    found = calibrate(points)

    def predict(p: Point) -> tuple[float, float, float]:
        e = found.predict(p.op, size_bytes=p.size_bytes, world_size=p.world_size)
        return e.time_ns, e.low_ns, e.high_ns

    return predict


def by_curve(points: Sequence[Point], make: Callable[[np.ndarray, np.ndarray], Callable[[float], float]]) -> Predictor:
    curves = {}
    for op in {p.op for p in points}:
        listed = sorted((p.size_bytes, p.time_ns) for p in points if p.op == op)
        curves[op] = make(*(np.array(column, float) for column in zip(*listed, strict=True)))

    def predict(p: Point) -> tuple[float, float, float]:
        return curves[p.op](p.size_bytes), float("nan"), float("nan")

    return predict


def interpolation(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    last = (y[-1] - y[-2]) / (x[-1] - x[-2])
    return lambda n: float(np.interp(n, x, y)) if n <= x[-1] else float(y[-1] + last * (n - x[-1]))


def least_squares(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    slope, alpha = np.polyfit(x, y, 1)
    return lambda n: float(alpha + slope * n)


def relative_line(x: np.ndarray, y: np.ndarray) -> Callable[[float], float]:
    line = fit(x, y)
    return lambda n: float(line.time_ns(n))


MODELS: dict[str, Callable[[Sequence[Point]], Predictor]] = {
    "ours": ours,
    "interpolation": lambda points: by_curve(points, interpolation),
    "least-squares line": lambda points: by_curve(points, least_squares),
    "line in relative error": lambda points: by_curve(points, relative_line),
}


def left_one_out(points: Sequence[Point]) -> list[tuple[list[Point], list[Point]]]:
    sizes = sorted({p.size_bytes for p in points})
    return [([p for p in points if p.size_bytes != s], [p for p in points if p.size_bytes == s]) for s in sizes[1:]]


def report(title: str, splits: Sequence[tuple[Sequence[Point], Sequence[Point]]], models: Sequence[str]) -> None:
    print(title)
    for name in models:
        rows = [(p, *model(p)) for known, unknown in splits for model in [MODELS[name](known)] for p in unknown]
        error = np.array([abs(time / p.time_ns - 1) for p, time, _, _ in rows])
        main = np.array([p.op in MAIN for p, *_ in rows])
        line = f"  {name:24s} {100 * error[main].mean():5.1f} % over the four, {100 * error.mean():5.1f} % over all"
        if name == "ours":
            inside = np.mean([low <= p.time_ns <= high for p, _, low, high in rows])
            width = np.mean([(high - low) / time for _, time, low, high in rows])
            line += f"; interval holds {100 * inside:.0f} %, mean width {100 * width:.0f} % of the time"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured")
    parser.add_argument("--left-out")
    parser.add_argument("--other-world")
    args = parser.parse_args()
    points = points_from_csv(args.measured)
    if args.left_out:
        report("sizes that were left out", [(points, points_from_csv(args.left_out))], list(MODELS))
    report("each size from the others", left_one_out(points), list(MODELS))
    if args.other_world:
        other = points_from_csv(args.other_world)
        sizes = sorted({p.size_bytes for p in other})
        halves = [
            ([p for p in other if p.size_bytes in sizes[a::2]], [p for p in other if p.size_bytes in sizes[b::2]])
            for a, b in ((0, 1), (1, 2))
        ]
        report("every second size from the others (other world size)", halves, list(MODELS))
        report("this world size from the other", [(other, points)], ["ours"])


if __name__ == "__main__":
    main()
