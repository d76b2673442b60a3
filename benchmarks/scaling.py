"""How the whole report grows with ranks, events and steps: CPU time, wall time and memory, each size in a process of
its own.

    python benchmarks/scaling.py [--ranks 1 2 4 8 9 16] [--events 25000 50000 100000 200000] [--steps 8 16 32 64]
                                 [--first-only] [--write docs/scaling.md] [--out scaling.json]

Every size repeats the events of a real run (`analysis.py`). Ranks grow at `--events-each` events of each; events and
steps grow on `--ranks-each` ranks. More events at a fixed number of steps are made by renaming the marks of the steps
beyond it, so that only one thing grows at a time. `--write` replaces the table between its marks and draws the picture
beside it.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
SAMPLE = ROOT / "tests" / "data" / "h200-hsdp"
BEGIN, END = "<!-- growth: begin -->", "<!-- growth: end -->"
PICTURE = Path("images") / "scaling.svg"
STAGES = ("read", "account", "diagnose", "report")
Row = dict[str, Any]


def main() -> int:
    arguments = parsed()
    if arguments.run_one:
        path, jobs, cache = arguments.run_one
        print(json.dumps(measured(path, int(jobs), cache)))
        return 0
    groups = {what: [best(size, arguments) for size in sizes] for what, sizes in all_sizes(arguments).items()}
    page = tables(groups)
    print(page)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(groups, indent=1))
    if arguments.write:
        write(Path(arguments.write), page, groups)
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[1, 2, 4, 8, 9, 16])
    parser.add_argument("--events", type=int, nargs="*", default=[25_000, 50_000, 100_000, 200_000])
    parser.add_argument("--steps", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--events-each", type=int, default=50_000, help="of each rank while ranks grow")
    parser.add_argument("--ranks-each", type=int, default=2, help="while events or steps grow")
    parser.add_argument("--jobs", type=int, default=0, help="files read at once, 0 for all cores")
    parser.add_argument("--rounds", type=int, default=1, help="of which the least CPU time counts")
    parser.add_argument("--first-only", action="store_true", help="measure no second report")
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stepscope-benchmarks")
    parser.add_argument("--write", metavar="PAGE")
    parser.add_argument("--out")
    parser.add_argument("--run-one", nargs=3, help=argparse.SUPPRESS)
    return parser.parse_args()


# Sizes --------------------------------------------------------------------------------------------------------------


def all_sizes(arguments: argparse.Namespace) -> dict[str, list[Row]]:
    """Return the sizes of each group; `steps` of None are all that the events hold."""
    few = arguments.ranks_each
    most = max(arguments.events, default=0)
    return {
        "ranks": [{"ranks": r, "events": arguments.events_each, "steps": None} for r in arguments.ranks],
        "events": [{"ranks": few, "events": e, "steps": min(arguments.steps, default=8)} for e in arguments.events],
        "steps": [{"ranks": few, "events": most, "steps": s} for s in arguments.steps],
    }


def made(size: Row, arguments: argparse.Namespace) -> Path:
    """Return the folder with a run of this size, made unless it is there already."""
    from analysis import large_run

    given = argparse.Namespace(sample=arguments.sample, ranks=size["ranks"], events=size["events"])
    whole = large_run(arguments.folder, given)
    if size["steps"] is None:
        return whole
    target = whole.with_name(f"{whole.name}-{size['steps']}steps")
    if not target.exists():
        unfinished = target.with_suffix(".tmp")
        unfinished.mkdir(exist_ok=True)
        for file in sorted(whole.glob("*.json")):
            (unfinished / file.name).write_text(with_steps(file.read_text(), size["steps"]))
        unfinished.rename(target)
    return target


def with_steps(text: str, most: int) -> str:
    """Return a trace in which only so many steps, spread over it, are marked as such."""
    numbers = sorted({int(n) for n in re.findall(r"ProfilerStep#(\d+)", text)})
    if len(numbers) <= most:
        return text
    kept = {numbers[round(i * (len(numbers) - 1) / max(most - 1, 1))] for i in range(most)}
    return re.sub(r"ProfilerStep#(\d+)", lambda m: m[0] if int(m[1]) in kept else f"Step {m[1]}", text)


# Measuring ----------------------------------------------------------------------------------------------------------


def best(size: Row, arguments: argparse.Namespace) -> Row:
    """Return the round with the least CPU time of a first report, with the second report of the same round."""
    folder = made(size, arguments)
    rounds = []
    for _ in range(arguments.rounds):
        cache = tempfile.mkdtemp()
        try:
            first = in_own_process(folder, arguments.jobs, cache)
            second = {} if arguments.first_only else in_own_process(folder, arguments.jobs, cache)
        finally:
            shutil.rmtree(cache)
        rounds.append(first | {"again_s": second.get("cpu_s"), "again_peak_mb": second.get("peak_mb")})
    return size | min(rounds, key=lambda row: float(row["cpu_s"]))


def in_own_process(folder: Path, jobs: int, cache: str) -> Row:
    command = [sys.executable, __file__, "--run-one", str(folder), str(jobs), cache]
    return dict(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def measured(folder: str, jobs: int, cache: str) -> Row:
    """Return what the whole report of a run costs, stage by stage, in this process."""
    import time
    from itertools import pairwise

    from peak_memory import own_peak_mb

    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled.load import load_run
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json

    wall, clock = time.perf_counter(), [time.process_time()]
    run = load_run(folder, jobs=jobs or None, cache_folder=Path(cache))
    clock.append(time.process_time())
    account = account_of(run)
    clock.append(time.process_time())
    diagnosis = diagnose(account)
    clock.append(time.process_time())
    json.dumps(report_json(account, diagnosis))
    clock.append(time.process_time())
    return {
        "measured_ranks": len(run.ranks_read),
        "in_full": len(run.ranks),
        "measured_events": sum(rank.num_events for rank in run.ranks_read),
        "measured_steps": account.num_steps,
        "size_mb": sum(rank.trace.raw_bytes for rank in run.ranks_read) / 1e6,
        "cpu_s": clock[-1] - clock[0],
        "wall_s": time.perf_counter() - wall,
        "peak_mb": own_peak_mb(),
        **{f"{stage}_s": b - a for stage, (a, b) in zip(STAGES, pairwise(clock), strict=True)},
    }


# Tables -------------------------------------------------------------------------------------------------------------


def tables(groups: dict[str, list[Row]]) -> str:
    return "\n\n".join(table(what, rows) for what, rows in groups.items() if rows)


def table(what: str, rows: list[Row]) -> str:
    """Return one group as Markdown; `per` is the CPU time for each of what grows, in proportion to the first row."""
    names = ("ranks", "in full", "events", "steps", "raw MB", *STAGES, "CPU s", "per", "wall s", "again s", "peak MB")
    lines = [_line(names), _line(["---"] * len(names))]
    first = rows[0]["cpu_s"] / rows[0][f"measured_{what}"]
    for row in rows:
        cells = [
            f"{row['measured_ranks']:,}",
            f"{row['in_full']:,}",
            f"{row['measured_events']:,}",
            f"{row['measured_steps']}",
            f"{row['size_mb']:.0f}",
            *(f"{row[f'{stage}_s']:.2f}" for stage in STAGES),
            f"{row['cpu_s']:.2f}",
            f"{row['cpu_s'] / row[f'measured_{what}'] / first:.2f}",
            f"{row['wall_s']:.1f}",
            "-" if row["again_s"] is None else f"{row['again_s']:.2f}",
            f"{row['peak_mb']:.0f}",
        ]
        lines.append(_line(cells))
    return f"By {what}:\n\n" + "\n".join(lines)


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def write(page: Path, text: str, groups: dict[str, list[Row]]) -> None:
    """Put the tables between their marks on a page, and the picture beside it."""
    from stepscope.report.svg.growth import Growth, growth_svg

    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    panels = [
        Growth(
            of=what if what == "ranks" else f"{what}, {rows[0]['ranks']} ranks",
            sizes=[row[f"measured_{what}"] for row in rows],
            costs={"first report": [r["cpu_s"] for r in rows]}
            | ({} if rows[0]["again_s"] is None else {"second report": [r["again_s"] for r in rows]}),
            unit="s",
        )
        for what, rows in groups.items()
        if rows
    ]
    if ranks := groups.get("ranks"):
        sizes = [row["measured_ranks"] for row in ranks]
        panels.insert(1, Growth("ranks", sizes, {"peak of memory": [row["peak_mb"] for row in ranks]}, unit="MB"))
    (page.parent / PICTURE).write_text(growth_svg(panels), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
