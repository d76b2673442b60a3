"""How the whole report grows with ranks, events and steps: CPU time, wall time and memory, one process per size.

    python benchmarks/scaling.py [--ranks 1 2 4 8 9 16] [--events 25000 50000 100000 200000] [--steps 8 16 32 64]
                                 [--first-only] [--write PAGE] [--out scaling.json]
    python benchmarks/scaling.py --light --ranks 1024 4096 16384 --steps 20
    python benchmarks/scaling.py --page

Every size repeats the events of a real run (`large_runs.py`). Ranks grow at `--events-each` events of each; events and
steps grow on `--ranks-each` ranks. More events at a fixed number of steps are made by renaming the marks of the steps
beyond it, so that only one thing grows at a time. `--write` replaces the table between the marks on PAGE and draws the
picture next to it. `--light` reports simulated step logs: a data-parallel step of 100 ms with 2 % of noise in which one
rank takes 20 ms longer, for which all others wait. `--page` draws, zooms and pans the HTML report of constructed runs
with every section in a browser (needs chromium and chromedriver); the main thread is measured in CPU time.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from common import ROOT, SCRATCH, own_peak_mb, row, run_json, table, write_between
from large_runs import FOUR_RANKS, large_run

from stepscope.lab.report.svg import panels_svg
from stepscope.report.charts import COLOURS, Axis, Line, line_chart
from stepscope.report.drawing import Drawing

PICTURE = Path("images") / "scaling.svg"
STEP_NS, LATE_NS, NOISE = 100_000_000, 20_000_000, 0.02
SHARES = {"data_loading": 0.02, "forward_pass": 0.3, "backward_pass": 0.6, "optimizer_step": 0.08}
STAGES = ("read", "account", "diagnose", "report")
Row = dict[str, Any]


def main() -> int:
    arguments = parsed()
    if arguments.run_one:
        path, jobs, cache = arguments.run_one
        print(json.dumps(measured(path, int(jobs), cache)))
        return 0
    if arguments.run_one_light:
        print(json.dumps(light_measured(arguments.run_one_light)))
        return 0
    if arguments.page:
        page_report()
        return 0
    if arguments.light:
        light_report(arguments)
        return 0
    groups = {what: [best(size, arguments) for size in sizes] for what, sizes in all_sizes(arguments).items()}
    page = "\n\n".join(growth_table(what, rows) for what, rows in groups.items() if rows)
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
    parser.add_argument("--sample", type=Path, default=FOUR_RANKS)
    parser.add_argument("--folder", type=Path, default=SCRATCH)
    parser.add_argument("--write", metavar="PAGE")
    parser.add_argument("--out")
    parser.add_argument("--light", action="store_true", help="step logs alone: --ranks, the largest of --steps")
    parser.add_argument("--page", action="store_true", help="size and drawing of the HTML report")
    parser.add_argument("--run-one-light", help=argparse.SUPPRESS)
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


# Measuring ----------------------------------------------------------------------------------------------------------


def best(size: Row, arguments: argparse.Namespace) -> Row:
    """Return the round with the least CPU time of a first report, with the second report of the same round."""
    given = {"ranks": size["ranks"], "events": size["events"], "max_steps": size["steps"]}
    folder = large_run(arguments.folder, sample=arguments.sample, **given)
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
    return dict(run_json([sys.executable, __file__, "--run-one", str(folder), str(jobs), cache], limit_s=3600))


def measured(folder: str, jobs: int, cache: str) -> Row:
    """Return what the whole report of a run costs, stage by stage, in this process."""
    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled import load_run
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


def growth_table(what: str, rows: list[Row]) -> str:
    """Return one group as Markdown; `per` is the CPU time per unit of growth, relative to the first row."""
    names = ("ranks", "in full", "events", "steps", "raw MB", *STAGES, "CPU s", "per", "wall s", "again s", "peak MB")
    first = rows[0]["cpu_s"] / rows[0][f"measured_{what}"]
    cells = [
        [
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
        for row in rows
    ]
    return f"By {what}:\n\n{table(names, cells)}"


@dataclass(frozen=True)
class Growth:
    """What was measured while one thing grew."""

    #: what grows, as the axis says it
    of: str
    sizes: Sequence[float]
    #: by what is measured, one value above 0 per size
    costs: dict[str, Sequence[float]]
    unit: str


def growth_svg(panels: Sequence[Growth]) -> str:
    """Return a panel per thing that grows; growth in proportion is a dashed line of slope one."""
    return panels_svg("Growth", [_growth(panel) for panel in panels])


def _growth(panel: Growth) -> Drawing:
    lines = []
    for k, (name, costs) in enumerate(panel.costs.items()):
        first, last, cost = panel.sizes[0], panel.sizes[-1], costs[0]
        proportion = [(first, cost), (last, cost * last / first)]
        lines.append(Line("", proportion, COLOURS[k], dashed=True, width=1))
        lines.append(Line(name, list(zip(panel.sizes, costs, strict=True)), COLOURS[k], "both"))
    return line_chart(panel.of, lines, Axis(panel.of, "number", log=True), Axis(panel.unit, "number", log=True))


def write(page: Path, text: str, groups: dict[str, list[Row]]) -> None:
    """Put the tables between their marks on a page, and the picture beside it."""
    write_between(page, "growth", text)
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


# Light logs


def light_report(arguments: argparse.Namespace) -> None:
    """Print the cost of the report of light logs alone, in which one rank is late."""
    rows = []
    for ranks in arguments.ranks:
        folder, late = light_logs(arguments.folder, ranks, max(arguments.steps))
        found = run_json([sys.executable, __file__, "--run-one-light", str(folder)], limit_s=3600)
        rows.append({"ranks": ranks, "steps": max(arguments.steps), "planted": late, **found})
        print(row(rows[-1].values()) if len(rows) > 1 else table(list(rows[0]), [rows[0].values()]), flush=True)
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(rows, indent=1))


def light_logs(parent: Path, ranks: int, steps: int) -> tuple[Path, int]:
    """Return the folder with the logs of so many ranks, made unless it is there already, and the late rank."""
    import numpy as np

    folder, late = parent / f"light-{ranks}x{steps}", ranks * 2 // 3
    if folder.exists():
        return folder, late
    unfinished = folder.with_suffix(".tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    own = STEP_NS * (1 + NOISE * rng.standard_normal((ranks, steps)))
    own[late] += LATE_NS
    wait = own.max(axis=0) - own
    for rank in range(ranks):
        text = "\n".join(map(json.dumps, light_lines(rank, ranks, own[rank], wait[rank])))
        (unfinished / f"rank{rank:05}.steps.jsonl").write_text(text + "\n")
    unfinished.rename(folder)
    return folder, late


def light_lines(rank: int, ranks: int, own_ns: Any, wait_ns: Any) -> list[dict[str, Any]]:
    """Return the log of one rank."""
    out: list[dict[str, Any]] = [{"schema": 1, "rank": rank, "world_size": ranks}]
    at = 1_700_000_000_000_000_000
    for step, (own, wait) in enumerate(zip(own_ns.tolist(), wait_ns.tolist(), strict=True)):
        regions = {name: {"ns": int(share * own), "n": 1} for name, share in SHARES.items()}
        regions["gradient_sync"] = {"ns": int(wait), "n": 1}
        dur = int(own + wait)
        times = {"start_ns": at, "end_ns": at + dur, "dur_ns": dur, "device_ns": None}
        out.append({"step": step, **times, "profiled": False, "phase": "after", "regions": regions})
        at += dur
    return out


def light_measured(folder: str) -> dict[str, Any]:
    """Return what the report costs in this process, and which ranks it names."""
    from stepscope.document.light import light_json
    from stepscope.run.light import load_light

    clock = [time.process_time()]
    run = load_light(folder)
    clock.append(time.process_time())
    document = light_json(run)
    clock.append(time.process_time())
    return {
        "size_mb": sum(path.stat().st_size for path in Path(folder).glob("*.jsonl")) / 1e6,
        "read_s": clock[1] - clock[0],
        "report_s": clock[2] - clock[1],
        "peak_mb": own_peak_mb(),
        "named": [late["rank"] for late in document["stragglers"]],
    }


# HTML report


def page_report() -> None:
    """Print size, drawing and zooming of the pages of two constructed runs."""
    sys.path.insert(0, str(ROOT))
    from tests.report.browser import Browser
    from tests.report.constructed import constructed_page

    with tempfile.TemporaryDirectory() as folder:
        for ranks, steps in ((64, 50), (1024, 1000)):
            begin = time.process_time()
            text = constructed_page(ranks=ranks, steps=steps)
            made_s = time.process_time() - begin
            path = Path(folder, f"{ranks}.html")
            path.write_text(text)
            with Browser(Path(folder, f"profile{ranks}")) as browser:
                browser.count_main_thread()
                browser.open(path)
                cpu_ms = browser.main_thread_ms()
                drawn_ms = float(browser.run("return document.documentElement.dataset.readyMs"))
                first_ms = browser.run("return performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
                browser.run(
                    "document.querySelector('#timeline').scrollIntoView({behavior: 'instant'});"
                    "return new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))"
                )
                moves = [moved(browser, key) for key in "w" * 8 + "d" * 8 + "s" * 8]
            print(
                f"{ranks} ranks x {steps} steps: {len(text) / 1e3:,.0f} kB, made in {made_s:.1f} s of CPU; drawn in "
                f"{cpu_ms:,.0f} ms of CPU, {drawn_ms:,.0f} ms after opening, the first of it after {first_ms:,.0f} ms; "
                f"zoom and pan {statistics.median(cpu for cpu, _ in moves):.0f} ms of CPU (most {max(moves)[0]:.0f}), "
                f"{statistics.median(wall for _, wall in moves):.0f} ms to draw"
            )


def moved(browser: Any, key: str) -> tuple[float, float]:
    """Return the main thread's CPU time of one zoom or pan, and how long drawing took, in milliseconds."""
    canvas = "document.querySelector('#timeline canvas')"
    before = browser.main_thread_ms()
    press = f"{canvas}.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
    browser.run(f"delete {canvas}.dataset.drawMs; {press}")
    wall = float(browser.waited(f"{canvas}.dataset.drawMs"))
    return browser.main_thread_ms() - before, wall


if __name__ == "__main__":
    sys.exit(main())
