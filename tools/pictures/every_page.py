"""One page of every kind, to look at: reports of recorded runs, and whatever else draws a page.

A page is a file or, where it is served, an address with the place to look at.
"""

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial
from pathlib import Path

from tests.analyze.live.runs import claim, line, write_log
from tests.report.constructed import constructed
from tests.report.pages import all_pages, light_run, light_sheet

from stepscope.analysis import Analysis, load
from stepscope.cli.watch.site import LiveSite
from stepscope.report.html.page import page_of
from stepscope.report.html.sheets.runs import runs_sheet
from stepscope.report.html.sheets.sheet import sheet_page
from stepscope.report.runs import RunEntry
from stepscope.report.view.server import Site, local_server
from stepscope.report.view.site import ViewSite
from stepscope.tables.catalog import LogTables, RunTables

ROOT = Path(__file__).parents[2]
RUNS = {
    "ddp": "ddp_host_straggler_rank2",
    "fsdp2": "fsdp2_zero3",
    "pipeline": "pp4_1f1b_m4",
    "moe": "moe_ep_skewed",
    "single": "naive_attention",
    "serving": "foreign-amd/vllm.json.gz",
}
"""recordings by what they show, in the corpus or in `tests/data`"""
COMPARED = ("ddp_host_straggler_rank2", "ddp_healthy")
CPU_RUNS = {"gloo": "gloo-ddp", "mesh": "gloo-mesh"}


def found(corpus: Path, run: str) -> Path:
    """Return where a recording is."""
    place = corpus / run
    return place if place.exists() else ROOT / "tests" / "data" / run


def analysed(corpus: Path, run: str) -> Analysis:
    """Return a recording with the step time that was measured without the profiler, where that was written down."""
    folder = found(corpus, run)
    truth = folder / "truth.json"
    known = json.loads(truth.read_text()).get("step_ms_unprofiled") if folder.is_dir() and truth.is_file() else None
    return load(folder, unprofiled_step_ms=known)


def page_makers(corpus: Path, folder: Path) -> dict[str, Callable[[], str]]:
    """Return what makes each page that is one file, by its name."""
    constructed_pages: dict[str, str] = {}

    def of_tests(name: str) -> str:
        if not constructed_pages:
            with redirect_stdout(io.StringIO()):  # the commands among them say what they found
                constructed_pages.update(all_pages(folder))
        return constructed_pages[name]

    names = ("bench", "scaling", "collectives", "calibration", "light")
    predicted = ("predict-flops", "predict-memory", "predict-strategy", "predict-collective")
    return {
        **{name: partial(_report, corpus, run) for name, run in {**RUNS, **CPU_RUNS}.items()},
        "large": lambda: page_of(constructed(ranks=64, steps=50)),
        "owners": lambda: page_of(constructed(ranks=8, steps=20, slices_per_rank=90)),
        "compare": lambda: analysed(corpus, COMPARED[0]).compare(analysed(corpus, COMPARED[1])).to_html(),
        "compare-owners": lambda: of_tests("compare"),
        "runs": lambda: sheet_page(runs_sheet("recordings", _entries(corpus))),
        **{name: partial(of_tests, name) for name in (*names, *predicted)},
    }


def _report(corpus: Path, run: str) -> str:
    return analysed(corpus, run).to_html()


def _entries(corpus: Path) -> list[RunEntry]:
    read = [RunEntry(run, None, analysed(corpus, run).document) for run in list(RUNS.values())[:5]]
    return [*read, RunEntry("broken", None, None, "no traces")]


@contextmanager
def served_pages(corpus: Path, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the addresses of the pages that are served, by their names."""
    one = analysed(corpus, RUNS["ddp"])
    light = light_run()
    sites: dict[str, tuple[Site, str]] = {
        "view": (ViewSite(one.account.run.name, one.to_html(), RunTables(one.account.run), bytes), ""),
        "view-light": (
            ViewSite(light.name, sheet_page(light_sheet()), LogTables(light.logs), None, names=LogTables.NAMES),
            "#tab=tables&table=step_log",
        ),
        "live": (LiveSite(str(_running_job(folder / "running-job"))), ""),
    }
    servers = {name: local_server(site) for name, (site, _) in sites.items()}
    for server in servers.values():
        server.start()
    try:
        found_at = {name: server.url + sites[name][1] for name, server in servers.items()}
        yield {**found_at, "view-tables": servers["view"].url + "#tab=tables&table=kernels&sort=-dur_ns"}
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


def _running_job(folder: Path) -> Path:
    for rank in range(4):
        slow = 14.0 if rank == 2 else 10.0
        write_log(claim(folder, "a"), rank, [line(step, slow) for step in range(200)])
    return folder
