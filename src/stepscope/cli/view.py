"""`stepscope view`: serve the report, the tables and the timeline on this machine until Ctrl-C."""

import argparse
import threading
import webbrowser
from contextlib import ExitStack
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.cli.given.run_arguments import account_from, calibration_for
from stepscope.cli.messages import print_line
from stepscope.diagnose.findings import diagnose
from stepscope.errors import UsageError
from stepscope.report.html import render_html
from stepscope.report.timeline.owner_tracks import with_owner_tracks
from stepscope.report.timeline.perfetto import perfetto_trace
from stepscope.report.timeline.slices import timeline_of
from stepscope.report.view.perfetto_ui import FIRST_PAGE, folder_site, perfetto_folder
from stepscope.report.view.server import LocalServer, local_server
from stepscope.report.view.site import PERFETTO, ViewSite
from stepscope.tables.catalog import RunTables
from stepscope.units import printable


def run(args: argparse.Namespace) -> int:
    """Return 0 after Ctrl-C, 3 where a rank could not be read."""
    if args.live:
        return _view_live(args)
    account = account_from(args)
    diagnosis = diagnose(account)
    with ExitStack() as open_servers:
        ui = perfetto_folder()
        offline = _serve(open_servers, local_server(folder_site(ui))) if ui else None
        site = ViewSite(
            name=account.run.name,
            report_html=render_html(account, diagnosis, calibration=calibration_for(args.calibration, account)),
            tables=RunTables(account.run, account=account),
            timeline=lambda: b"".join(perfetto_trace(with_owner_tracks(timeline_of(account.shared), account.shared))),
            perfetto=offline.url + FIRST_PAGE if offline else PERFETTO,
        )
        server = _serve(open_servers, local_server(site, port=args.port))
        print_line(f"{printable(account.run.name)} is at {server.url}")
        print_line("Ctrl-C ends it.")
        if not args.no_browser:
            _open_browser(server.url, open_servers)
        _wait_until_stopped()
    return 3 if account.run.unreadable else 0


def _view_live(args: argparse.Namespace) -> int:
    """Serve how a job goes that still runs."""
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
    """Open the address by way of a file that only this user can read: other users can see command lines."""
    page = Path(until.enter_context(TemporaryDirectory(prefix="stepscope-")), "view.html")
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _wait_until_stopped() -> None:
    """Wait for Ctrl-C, which is how a reader leaves and no error."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        print_line()
