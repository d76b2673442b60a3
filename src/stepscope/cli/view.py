"""Look at a run in the browser: its report, its tables, its timeline in Perfetto.

The pages are served on this machine only, behind a token that is in the printed address. Ctrl-C ends it. The timeline
opens at ui.perfetto.dev, which reads it inside your browser and uploads nothing; where the `perfetto` extra is
installed (pip install 'stepscope[perfetto]'), Perfetto's pages come from this machine too and no network is needed.

examples:
  stepscope view run-folder/
  stepscope view run-folder/ --port 9000 --no-browser     then: ssh -L 9000:localhost:9000 HOST
"""

import argparse
import threading
import webbrowser
from contextlib import ExitStack
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.cli.given_run import account_from, add_run_arguments, calibration_for
from stepscope.cli.say import say
from stepscope.cli.sizes import whole_number
from stepscope.diagnose.findings import diagnose
from stepscope.report.html import render_html
from stepscope.report.timeline.perfetto import perfetto_trace
from stepscope.report.timeline.slices import timeline_of
from stepscope.report.view.perfetto_ui import FIRST_PAGE, folder_site, perfetto_folder
from stepscope.report.view.server import LocalServer, local_server
from stepscope.report.view.site import PERFETTO, ViewSite
from stepscope.tables.catalog import RunTables
from stepscope.units import printable

DEFAULT_PORT = 8750


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_run_arguments(parser)
    parser.add_argument("--calibration", metavar="FILE", help="calibration.json to compare with (the run folder's own)")
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, metavar="N", help=f"port, or the next free one ({DEFAULT_PORT})"
    )
    parser.add_argument("--no-browser", action="store_true", help="print the address and open nothing")


def run(args: argparse.Namespace) -> int:
    """Return 0 after Ctrl-C, 3 where a rank could not be read."""
    account = account_from(args)
    diagnosis = diagnose(account)
    with ExitStack() as open_servers:
        ui = perfetto_folder()
        offline = _served(open_servers, local_server(folder_site(ui))) if ui else None
        site = ViewSite(
            name=account.run.name,
            report_html=render_html(account, diagnosis, calibration=calibration_for(args.calibration, account)),
            tables=RunTables(account.run, account=account),
            timeline=lambda: b"".join(perfetto_trace(timeline_of(account.shared))),
            perfetto=offline.url + FIRST_PAGE if offline else PERFETTO,
        )
        server = _served(open_servers, local_server(site, port=args.port))
        say(f"{printable(account.run.name)} is at {server.url}")
        say("Ctrl-C ends it.")
        if not args.no_browser:
            _open_browser(server.url, open_servers)
        _until_stopped()
    return 3 if account.run.unreadable else 0


def _served(open_servers: ExitStack, server: LocalServer) -> LocalServer:
    open_servers.callback(server.server_close)
    open_servers.callback(server.shutdown)
    server.start()
    return server


def _open_browser(url: str, until: ExitStack) -> None:
    """Open the address by way of a file that only this user can read: other users can see command lines."""
    page = Path(until.enter_context(TemporaryDirectory(prefix="stepscope-")), "view.html")
    page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())


def _until_stopped() -> None:
    """Wait for Ctrl-C, which is how a reader leaves and no error."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        say()


def _port(text: str) -> int:
    number = whole_number(text)
    if number is None or number > 65535:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to 65535, found {text}")
    return number
