"""Open a run in the browser: its report, its tables, its timeline in Perfetto.

The pages are served on this machine only, behind a token that is in the printed address. Ctrl-C ends it. The timeline
opens at ui.perfetto.dev, which reads it inside your browser and uploads nothing; where the `perfetto` extra is
installed (pip install 'stepscope[perfetto]'), Perfetto's pages come from this machine too and no network is needed.

A folder of runs shows a list of them. A run without traces and the results of `stepscope bench` have a page too.

examples:
  stepscope view run-folder/
  stepscope view run-folder/ --live                       how a running job goes, as stepscope watch shows it
  stepscope view run-folder/ --port 9000 --no-browser     then: ssh -L 9000:localhost:9000 HOST
"""

import argparse
import threading
import webbrowser
from collections.abc import Callable
from contextlib import ExitStack
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.arguments import add_run_arguments, whole_number
from stepscope.cli.outputs import print_line
from stepscope.cli.run import account_from, cached_page, kind_of_input, opener_of, page_maker, run_entries
from stepscope.errors import UsageError
from stepscope.units import printable

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.report.view.server import LocalServer, Site
    from stepscope.tables.catalog import RunTables
    from stepscope.tables.table import Table

_DEFAULT_PORT = 8750


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--calibration", metavar="FILE", help="calibration.json to compare with (the run folder's own)")
    parser.add_argument(
        "--port", type=_port, default=_DEFAULT_PORT, metavar="N", help=f"port, or the next free one ({_DEFAULT_PORT})"
    )
    parser.add_argument("--live", action="store_true", help="live page of a running job")
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def _port(text: str) -> int:
    number = whole_number(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"{text} is not a port from 0 to 65535")
    return number


def run(args: argparse.Namespace) -> int:
    """Return 0 after Ctrl-C, 3 if a rank could not be read."""
    from stepscope.report.view.server import FIRST_PAGE, folder_site, local_server, perfetto_folder
    from stepscope.report.view.site import PERFETTO

    with ExitStack() as open_servers:
        if args.live:
            from stepscope.cli.watch import LiveSite

            if len(args.run) != 1:
                raise UsageError("--live shows one run; give its folder alone")
            live = LiveSite(args.run[0], flops_per_step=args.flops_per_step, peak_tflops=args.peak_tflops)
            site: Site = live
            name, is_partial = f"{printable(live.name)} (live)", False
        else:
            ui = perfetto_folder()
            offline = _serve(open_servers, local_server(folder_site(ui))) if ui else None
            viewed, site, is_partial = _viewed(args, args.run, offline.url + FIRST_PAGE if offline else PERFETTO)
            name = printable(viewed)
        server = _serve(open_servers, local_server(site, port=args.port))
        print_line(f"{name} is at {server.url}")
        print_line("Ctrl-C ends it.")
        if not args.no_browser:
            _open_browser(server.url, open_servers)
        _wait_until_stopped()
    return 3 if is_partial else 0


def _wait_until_stopped() -> None:
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print_line()


def _serve(open_servers: ExitStack, server: "LocalServer") -> "LocalServer":
    open_servers.callback(server.server_close)
    open_servers.callback(server.shutdown)
    server.start()
    return server


def _open_browser(url: str, until: ExitStack) -> None:
    from tempfile import TemporaryDirectory

    page = Path(until.enter_context(TemporaryDirectory(prefix="stepscope-")), "view.html")
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _viewed(args: argparse.Namespace, given: list[str], perfetto: str) -> "tuple[str, Site, bool]":
    """Return name and site of a run, and whether a part of it could not be read."""
    kind = kind_of_input(given)
    if kind == "steps":
        return _light(given[0])
    if kind == "results":
        return opener_of(given[0]).view(given[0])
    return _folder(args, given[0], perfetto) if kind == "runs" else _traced(args, given, perfetto)


def _traced(args: argparse.Namespace, given: list[str], perfetto: str) -> "tuple[str, Site, bool]":
    from stepscope.report.view.site import ViewSite

    page = cached_page(args, given)
    viewed = _ViewedRun(lambda: account_from(args, None if given == args.run else given))
    if page is None:
        from stepscope.diagnose.findings import diagnose
        from stepscope.document.report import report_json

        make_page = page_maker(args, given)
        account = viewed.account
        page = make_page(account, report_json(account, diagnose(account), details=True))
    site = ViewSite(name=page.name, report_html=page.html, tables=viewed, timeline=viewed.timeline, perfetto=perfetto)
    return page.name, site, page.is_partial


class _ViewedRun:
    """A run that is read when its tables or timeline are first opened."""

    def __init__(self, read: "Callable[[], Account]") -> None:
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
        from stepscope.report.timeline import timeline_of

        return b"".join(perfetto_trace(timeline_of(self.account.shared, owners=True)))


def _light(folder: str) -> "tuple[str, Site, bool]":
    from stepscope.analyze.steadiness import log_series
    from stepscope.document.light import light_json
    from stepscope.report.html.sheets import sheet_page
    from stepscope.report.pages.light import steps_sheet
    from stepscope.report.view.site import ViewSite
    from stepscope.run.light import load_light
    from stepscope.tables.catalog import LogTables

    run = load_light(folder)
    page = sheet_page(steps_sheet(light_json(run), log_series(run.logs)))
    return run.name, ViewSite(run.name, page, LogTables(run.logs), None, names=LogTables.NAMES), False


def _folder(args: argparse.Namespace, folder: str, perfetto: str) -> "tuple[str, Site, bool]":
    from stepscope.report.html.sheets import sheet_page
    from stepscope.report.pages.history import runs_sheet
    from stepscope.report.view.site import RunsSite, link_to

    def site_of(run: str) -> "Site":
        return _viewed(args, [str(Path(folder) / run)], perfetto)[1]

    name = Path(folder).absolute().name
    entries = run_entries(args, folder)
    read = [entry for entry in entries if entry.report is not None]
    page = sheet_page(runs_sheet(name, entries, links=[link_to(i) for i in range(len(read))]))
    return name, RunsSite(page, tuple(partial(site_of, entry.name) for entry in read)), len(read) < len(entries)
