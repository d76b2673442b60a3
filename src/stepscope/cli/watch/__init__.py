"""`stepscope watch`: a running job as it goes, on a screen or in lines, until it ends."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import RenderableType
from rich.live import Live as Screen

from stepscope.analyze.live import GivenNumbers
from stepscope.cli.given.attempts import newest_attempt
from stepscope.cli.messages import print_line
from stepscope.cli.output import growing_lines
from stepscope.cli.watch.watched import WatchedJob
from stepscope.document.live import live_json
from stepscope.report.live import plain_line, screen
from stepscope.report.terminal import console
from stepscope.units import printable

_MAX_PAUSE_S = 3600.0


def run(args: argparse.Namespace) -> int:
    """Return 0 once the job has ended, or after Ctrl-C."""
    watched = WatchedJob(
        newest_attempt(args.run), GivenNumbers(args.flops_per_step, args.peak_tflops), trigger=args.trigger
    )
    try:
        with _shown(watched, once=args.once, json=args.json, force=args.force) as show:
            while True:
                over = watched.look()
                show()
                if over or args.once:
                    break
                _pause(args.every)
    except KeyboardInterrupt:
        if args.json != "-":
            print_line()
        return 0
    if watched.is_over and args.json != "-":
        print_line(f"the job has ended; next: stepscope report {printable(str(watched.folder))}")
    return 0


def _pause(seconds: float) -> None:
    time.sleep(min(seconds, _MAX_PAUSE_S))


@contextmanager
def _shown(watched: WatchedJob, *, once: bool, json: str | None, force: bool) -> Iterator[Callable[[], None]]:
    """Give what shows the newest look: as a line of JSON where that is asked for, and to whoever reads the terminal."""
    if json is None:
        with _read(watched, once=once) as read:
            yield read
        return
    with growing_lines(json, force=force) as write, _read(watched, once=once, nobody=json == "-") as read:

        def show() -> None:
            write(_document(watched))
            read()

        yield show


def _document(watched: WatchedJob) -> dict[str, Any]:
    assert watched.picture is not None
    return live_json(
        str(watched.folder),
        watched.picture,
        alarms=watched.alarms.up,
        stalls=watched.stalls,
        news=watched.news,
        over=watched.is_over,
    )


@contextmanager
def _read(watched: WatchedJob, *, once: bool, nobody: bool = False) -> Iterator[Callable[[], None]]:
    """Give what shows the newest look to a reader: a screen on a terminal, lines elsewhere, nothing to nobody."""
    if nobody:
        yield watched.news.clear
        return
    out = console(sys.stdout)
    if not out.is_terminal:
        yield lambda: _print_news(watched)
        return

    def drawn() -> RenderableType:
        assert watched.picture is not None
        name = watched.folder.absolute().name
        return screen(name, watched.picture, out, alarms=[*watched.alarms.up.values()], stalls=watched.stalls)

    if once:
        yield lambda: out.print(drawn())
        return
    with Screen(console=out, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live:

        def show() -> None:
            for line in watched.news:
                live.console.print(f"{time.strftime('%H:%M:%S')} {line}")
            watched.news.clear()
            live.update(drawn(), refresh=True)

        yield show


def _print_news(watched: WatchedJob) -> None:
    assert watched.picture is not None
    now = time.strftime("%H:%M:%S")
    print_line(f"{now} {plain_line(watched.picture)}")
    for line in watched.news:
        print_line(f"{now} {line}")
    watched.news.clear()
