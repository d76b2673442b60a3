"""`stepscope view`: serve the report, the tables and the timeline on this machine until Ctrl-C.

A run, a run without traces, the results of a benchmark, or a folder of runs. What is heavy is imported where it is
needed: of an unchanged run only its page is read at first, the run itself when a table or the timeline is looked at.
"""

import argparse
import threading
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from stepscope.cli.given.kept_page import kept_page, page_maker
from stepscope.cli.messages import print_line
from stepscope.errors import UsageError
from stepscope.report.view.server import FIRST_PAGE, LocalServer, Site, folder_site, local_server, perfetto_folder
from stepscope.report.view.site import PERFETTO, ViewSite
from stepscope.run.sources import RESULTS_JSON, folder_of_runs, has_steps_only
from stepscope.units import printable

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.tables.catalog import RunTables
    from stepscope.tables.table import Table


class _ViewedRun(NamedTuple):
    name: str
    site: Site
    #: a rank or a run could not be read
    is_partial: bool = False


def run(args: argparse.Namespace) -> int:
    """Return 0 after Ctrl-C, 3 where a rank could not be read."""
    if args.live:
        return _view_live(args)
    with ExitStack() as open_servers:
        ui = perfetto_folder()
        offline = _serve(open_servers, local_server(folder_site(ui))) if ui else None
        viewed = _viewed(args, args.run, offline.url + FIRST_PAGE if offline else PERFETTO)
        server = _serve(open_servers, local_server(viewed.site, port=args.port))
        print_line(f"{printable(viewed.name)} is at {server.url}")
        print_line("Ctrl-C ends it.")
        if not args.no_browser:
            _open_browser(server.url, open_servers)
        _wait_until_stopped()
    return 3 if viewed.is_partial else 0


def _viewed(args: argparse.Namespace, given: list[str], perfetto: str) -> _ViewedRun:
    if has_steps_only(given):
        return _light(given[0])
    if len(given) == 1 and (Path(given[0]) / RESULTS_JSON).is_file():
        from stepscope.results.folder import is_bench_folder

        if is_bench_folder(given[0]):
            return _benchmark(given[0])
    runs = folder_of_runs(given[0]) if len(given) == 1 else []
    return _folder(args, given[0], runs, perfetto) if runs else _traced(args, given, perfetto)


def _traced(args: argparse.Namespace, given: list[str], perfetto: str) -> _ViewedRun:
    page = kept_page(args, given)
    looked_at = _LookedAtRun(partial(_account, args, given))
    if page is None:
        from stepscope.diagnose.findings import diagnose

        make_page = page_maker(args, given)
        page = make_page(looked_at.account, diagnose(looked_at.account))
    site = ViewSite(
        name=page.name, report_html=page.html, tables=looked_at, timeline=looked_at.timeline, perfetto=perfetto
    )
    return _ViewedRun(page.name, site, page.is_partial)


def _account(args: argparse.Namespace, given: list[str]) -> "Account":
    from stepscope.cli.given.run_arguments import account_from

    return account_from(args, None if given == args.run else given)


class _LookedAtRun:
    def __init__(self, read: Callable[[], "Account"]) -> None:
        self._read = read

    @cached_property
    def account(self) -> "Account":
        return self._read()

    @cached_property
    def _tables(self) -> "RunTables":
        from stepscope.tables.catalog import RunTables

        return RunTables(self.account.run, account=self.account)

    def table(self, name: str) -> "Table":
        return self._tables.table(name)

    def timeline(self) -> bytes:
        from stepscope.report.perfetto import perfetto_trace
        from stepscope.report.timeline import timeline_of, with_owner_tracks

        shared = self.account.shared
        return b"".join(perfetto_trace(with_owner_tracks(timeline_of(shared), shared)))


def _benchmark(folder: str) -> _ViewedRun:
    from stepscope.report.html.sheets import bench_sheet, sheet_page
    from stepscope.results.folder import read_bench_results
    from stepscope.tables.catalog import LogTables

    results = read_bench_results(folder)
    page = sheet_page(bench_sheet(results))
    return _ViewedRun(results.name, ViewSite(results.name, page, LogTables(()), None, names=()))


def _light(folder: str) -> _ViewedRun:
    from stepscope.analyze.steadiness import log_series
    from stepscope.document.light import light_json
    from stepscope.report.html.sheets import sheet_page, steps_sheet
    from stepscope.run.light import load_light
    from stepscope.tables.catalog import LogTables

    run = load_light(folder)
    page = sheet_page(steps_sheet(light_json(run), log_series(run.logs)))
    return _ViewedRun(run.name, ViewSite(run.name, page, LogTables(run.logs), None, names=LogTables.NAMES))


def _folder(args: argparse.Namespace, folder: str, runs: list[Path], perfetto: str) -> _ViewedRun:
    from stepscope.cli.given.folder_of_runs import run_entries
    from stepscope.report.html.sheets import runs_sheet, sheet_page
    from stepscope.report.view.site import RunsSite, link_to

    name = Path(folder).absolute().name
    entries = run_entries(args, runs)
    read = [entry for entry in entries if entry.report is not None]
    page = sheet_page(runs_sheet(name, entries, links=[link_to(i) for i in range(len(read))]))
    make = tuple(partial(_site_of, args, str(Path(folder) / entry.name), perfetto) for entry in read)
    return _ViewedRun(name, RunsSite(page, make), len(read) < len(entries))


def _site_of(args: argparse.Namespace, folder: str, perfetto: str) -> Site:
    return _viewed(args, [folder], perfetto).site


def _view_live(args: argparse.Namespace) -> int:
    from stepscope.cli.watch.site import LiveSite  # only where it is asked for

    if len(args.run) != 1:
        raise UsageError("--live shows one run; give its folder alone")
    site = LiveSite(args.run[0], flops_per_step=args.flops_per_step, peak_tflops=args.peak_tflops)
    with ExitStack() as open_servers:
        server = _serve(open_servers, local_server(site, port=args.port))
        print_line(f"{printable(site.name)} as it goes is at {server.url}")
        print_line("Ctrl-C ends it.")
        if not args.no_browser:
            _open_browser(server.url, open_servers)
        _wait_until_stopped()
    return 0


def _serve(open_servers: ExitStack, server: LocalServer) -> LocalServer:
    open_servers.callback(server.server_close)
    open_servers.callback(server.shutdown)
    server.start()
    return server


def _open_browser(url: str, until: ExitStack) -> None:
    page = Path(until.enter_context(TemporaryDirectory(prefix="stepscope-")), "view.html")
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _wait_until_stopped() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print_line()
