"""One page of every kind, from results that are made up but whole: for tests that hold all pages to one rule."""

import random
import re
import sys
from pathlib import Path
from typing import Any

from tests.analyze.live.runs import claim, line
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.planted_job import plant_two_attempts
from tests.analyze.step_logs import log_lines, write_log
from tests.report.constructed import constructed_page

from stepscope.analysis import load
from stepscope.cli.main import main
from stepscope.cli.watch import LiveSite
from stepscope.document.light import light_json
from stepscope.lab.predict.calibrate import Point, calibrate
from stepscope.lab.report.bench import bench_sheet
from stepscope.lab.report.sheets import calibration_sheet
from stepscope.lab.results.folder import bench_results_of
from stepscope.report.html.sheets import sheet_page
from stepscope.report.pages.history import RunEntry, runs_sheet
from stepscope.report.pages.light import steps_sheet
from stepscope.report.sheet import Sheet
from stepscope.run.light import LightRun
from stepscope.run.side_files import StepLog, step_log_of

MODEL = ["--layers", "12", "--d-model", "768", "--heads", "12", "--vocab", "50257", "--seq-len", "1024"]
PREDICTIONS = {
    "flops": MODEL,
    "memory": [*MODEL, "--strategy", "fsdp", "--data", "4", "--device", "H200 SXM"],
    "strategy": [*MODEL, "--sequences", "64", "--device", "H200 SXM", "--world-size", "8"],
    "collective": ["--link", "50", "--op", "all_reduce", "--bytes", "1MB", "25MB", "--world-size", "8"],
}


DATA = Path(__file__).parents[1] / "data"


def all_pages(folder: Path) -> dict[str, str]:
    """Return the text of a page of every kind."""
    runs = folder / "a", folder / "b"
    owned_folder(runs[0])
    owned_folder(runs[1], late_us=200.0)
    a, b = map(load, runs)
    entries = [RunEntry(name, None, one.document) for name, one in (("a", a), ("b", b))]
    sheets = {
        "bench": bench_sheet(bench_of(comparison())),
        "scaling": bench_sheet(bench_of(scaling())),
        "collectives": bench_sheet(bench_of(collectives())),
        "calibration": calibration_sheet(calibrate(points(), about={"backend": "gloo"})),
        "light": light_sheet(),
        "runs": runs_sheet("runs", [*entries, RunEntry("broken", None, None, "no traces")]),
    }
    return {
        "report": constructed_page(ranks=8, steps=20, slices_per_rank=90),
        "compare": a.compare(b).to_html(),
        **{name: sheet_page(sheet) for name, sheet in sheets.items()},
        **command_pages(folder),
        **{f"predict-{what}": prediction(what, folder) for what in PREDICTIONS},
    }


def command_pages(folder: Path) -> dict[str, str]:
    """Return the pages that `memory`, `hang`, `history` and `job` write."""
    plant_two_attempts(folder / "job")
    given: dict[str, list[Any]] = {
        "memory": [DATA / "memory_snapshot" / "snapshot.pickle.gz"],
        "hang": sorted((DATA / "flight_recorder").glob("*rank*")),
        "history": [folder, "--no-cache"],
        "job": [folder / "job" / "run"],
    }
    for command, arguments in given.items():
        assert main([command, *map(str, arguments), "--html", str(folder / f"of-{command}.html"), "-q"]) == 0
    return {command: (folder / f"of-{command}.html").read_text() for command in given}


def live_text(folder: Path) -> str:
    """Return the page of a running job, whose rank 1 is late, without its refresh."""
    for rank in (0, 1):
        write_log(claim(folder / "live", "a"), rank, [line(step, 10.0 + rank + step % 3) for step in range(40)])
    page = LiveSite(str(folder / "live"))("", {})
    assert page is not None
    return re.sub('<meta http-equiv="refresh"[^>]*>', "", page.body.decode())


def light_sheet() -> Sheet:
    """Return the page of a run without traces; rank 1 works longer and rank 0 waits."""
    from stepscope.analyze.steadiness import log_series

    run = light_run()
    return steps_sheet(light_json(run), log_series(run.logs))


def light_run() -> LightRun:
    """Return two ranks of 40 steps; rank 1 works 20 ms longer, rank 0 waits for it."""
    return LightRun(
        "light", Path("light"), (log(0, wait_ms=22.0), log(1, wait_ms=2.0)), {"tokens_per_step": 4096}, (), ()
    )


def log(rank: int, *, wait_ms: float) -> StepLog:
    noise = random.Random(rank)
    times = (30 + noise.uniform(-0.3, 0.3) for _ in range(40))
    lines = log_lines({"backward_pass": 5.0, "gradient_sync": wait_ms, "outside": ms - 5.0 - wait_ms} for ms in times)
    return step_log_of(lines, rank=rank)


def prediction(what: str, folder: Path) -> str:
    """Return the page that the command writes."""
    path = folder / f"{what}.html"
    before = sys.argv
    sys.argv = ["stepscope", "predict", what, *PREDICTIONS[what]]
    try:
        assert main(["predict", what, *PREDICTIONS[what], "--html", str(path), "-q"]) == 0
    finally:
        sys.argv = before
    return path.read_text()


def bench_of(document: dict[str, Any]) -> Any:
    return bench_results_of(document, name="results", path=Path("results.json"))


def document(command: str, series: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    where = {"world_size": 4, "backend": "gloo", "device": "cpu", "torch": "2.13.0"}
    return {"schema": 1, "kind": "bench", "command": command, "environment": where, "series": series, **more}


def comparison() -> dict[str, Any]:
    rows = [_series(name, time) for name, time in (("pytorch_ddp", 21.0), ("ddp_bucketed", 20.0), ("flat", 29.0))]
    advice = {"series": "ddp_bucketed", "reason": "clearly faster"}
    return document("stepscope bench ddp", rows, recommendation=advice)


def scaling() -> dict[str, Any]:
    rows = [_series(f"weak-{n}", 20.0 + n, mode="weak", world_size=n) for n in (1, 2, 4)]
    return document("stepscope bench scaling", rows)


def collectives() -> dict[str, Any]:
    rows = [
        {
            "name": f"all_reduce-2-{size}",
            "config": {"op": "all_reduce", "world_size": 2, "bytes": size},
            "samples_ms": [[0.02 + size / 1e7]],
            "summary": {"algbw_gb_per_s": 5.0, "busbw_gb_per_s": 5.0},
        }
        for size in (1 << 10, 1 << 16, 1 << 20)
    ]
    return document("stepscope bench collectives", rows)


def points() -> list[Point]:
    return [
        Point("all_reduce", world, size, 20e3 * world + size / 10)
        for world in (2, 4)
        for size in (1 << 10, 1 << 14, 1 << 18, 1 << 22)
    ]


def _series(name: str, time_ms: float, **config: Any) -> dict[str, Any]:
    noise = random.Random(name)
    samples = [[time_ms * (1 + noise.gauss(0, 0.02)) for _ in range(30)] for _ in range(3)]
    summary = {"median_step_time": time_ms, "tokens_per_sec": 4096e3 / time_ms, "peak_memory_allocated_gb": 2.1}
    return {"name": name, "config": {"warmup_steps": 5, **config}, "samples_ms": samples, "summary": summary}
