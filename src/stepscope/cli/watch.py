"""A running job, live: steps per second, MFU, regions, late ranks, memory, alarms, hung ranks.

examples:
  stepscope watch stepscope-run/
  stepscope watch stepscope-run/ --every 10 > watch.log
  stepscope watch stepscope-run/ --trigger 5
  stepscope watch stepscope-run/ --once
  stepscope watch stepscope-run/ --json - | jq .steps_per_s

It reads the step logs that the recorder writes (stepscope record, also with --light) and nothing else of the job. On a
terminal it redraws one screen, elsewhere it prints a line per refresh. After an elastic restart it continues with the
new attempt; it ends with the job, or by Ctrl-C.
"""

import argparse
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import above_zero, add_force, at_least_one, whole_number
from stepscope.cli.outputs import growing_lines, print_line, print_rendered
from stepscope.cli.trigger import ask_for_window, newest_attempt, wait_for_run
from stepscope.contract.live import Alarms
from stepscope.contract.run_folder import of_window
from stepscope.errors import InputError
from stepscope.records import Row
from stepscope.units import printable

if TYPE_CHECKING:
    from stepscope.report.view.server import Answer
    from stepscope.run.light import Running

_REFRESH_S = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", metavar="RUN", help="run folder of a job that runs")
    parser.add_argument("--every", type=above_zero, default=2.0, metavar="S", help="refresh interval in seconds (2)")
    parser.add_argument("--once", action="store_true", help="print once and exit")
    parser.add_argument(
        "--trigger", type=at_least_one, metavar="N", help="request N profiled steps when an alarm is raised"
    )
    parser.add_argument("--json", metavar="PATH", help="write each refresh as one line of JSON; - for standard output")
    add_force(parser)
    parser.add_argument("--flops-per-step", type=above_zero, metavar="F", help="model FLOPs of the whole job per step")
    parser.add_argument("--peak-tflops", type=above_zero, metavar="P", help="peak of one device in TFLOP/s")


def run(args: argparse.Namespace) -> int:
    """Return 0 once the job has ended, or after Ctrl-C."""
    wait_for_run(args.run)
    watched = WatchedJob(
        args.run, flops_per_step=args.flops_per_step, peak_tflops=args.peak_tflops, trigger=args.trigger
    )
    try:
        with growing_lines(args.json, force=args.force) if args.json else nullcontext() as write:
            while True:
                over = watched.refresh()
                document = watched.take_document()
                if write:
                    write(document)
                if args.json != "-":
                    _show(watched, document, once=args.once)
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
    time.sleep(min(seconds, 3600.0))


def _show(watched: "WatchedJob", document: dict[str, Any], *, once: bool) -> None:
    """Show the newest state: a screen on a terminal, lines elsewhere."""
    from stepscope.report.pages.live import live_sheet, plain_line
    from stepscope.report.sheet_text import sheet_text

    if sys.stdout.isatty():
        name = watched.folder.absolute().name
        sheet = live_sheet(name, document, watched.picture, said=watched.said)
        sys.stdout.write("" if once else "\x1b[H\x1b[J")  # the screen is drawn anew
        print_rendered(partial(sheet_text, sheet))
        sys.stdout.flush()
    else:
        for line in (plain_line(document), *document["news"]):
            print_line(f"{time.strftime('%H:%M:%S')} {line}")


class WatchedJob:
    """A running job: its newest picture, its alarms, and lines that were not printed yet."""

    picture: "Row"

    def __init__(
        self,
        given: str | Path,
        *,
        flops_per_step: float | None = None,
        peak_tflops: float | None = None,
        trigger: int | None = None,
    ) -> None:
        from stepscope.run.light import RunningJob

        self.folder = newest_attempt(given)
        self.stalls: list[str] = []
        self.is_over = False
        #: the newest lines about the job, with the time of day
        self.said: deque[str] = deque(maxlen=40)
        self._news: list[str] = []
        self.alarms = Alarms()
        self._given = {"flops_per_step": flops_per_step, "peak_tflops": peak_tflops}
        self._trigger = trigger
        self._job = RunningJob(self.folder)
        self._over_since_s: float | None = None

    def refresh(self) -> bool:
        """Read the newest state; return whether the job is over and will not restart."""
        from stepscope.analyze.live import picture_of

        self._follow_restart()
        running = self._job.look()
        if not running.ranks:
            raise InputError(f"{self.folder}: no step log is there; give the run folder that stepscope record named")
        self.picture = picture_of(running, **self._given)
        self._update_alarms()
        self._update_stalls(running)
        self.is_over = running.is_over
        if not running.is_over:
            self._over_since_s = None
            return False
        now_s = time.monotonic()
        self._over_since_s = self._over_since_s or now_s
        return not _may_restart(running) or now_s - self._over_since_s > 60

    def take_document(self) -> dict[str, Any]:
        """Return the newest state as JSON, with the news since the last one."""
        from stepscope.document.live import live_json

        news, self._news = self._news, []
        self.said.extend(f"{time.strftime('%H:%M:%S')} {line}" for line in news)
        folder, up = str(self.folder), self.alarms.up
        return live_json(folder, self.picture, alarms=up, stalls=self.stalls, news=news, over=self.is_over)

    def _follow_restart(self) -> None:
        newest = newest_attempt(self.folder)
        if newest != self.folder and any(newest.glob("rank*.steps.jsonl")):
            self._news.append(f"the job has restarted: {printable(str(newest))}")
            self.folder, self._job, self.alarms = newest, type(self._job)(newest), Alarms()

    def _update_alarms(self) -> None:
        from stepscope.analyze.live import states_of

        for change in self.alarms.update(self.picture.step, states_of(self.picture)):
            self._news.append(f"{'alarm' if change.rises else 'over'}: {change.text}")
            if change.rises and self._trigger is not None:
                try:
                    plan = ask_for_window(self.folder, steps=self._trigger, by=f"stepscope watch: {change.kind}")
                except InputError as e:
                    self._news.append(f"no window: {e}")
                    continue
                where = printable(str(self.folder / of_window(plan.window, "")))
                self._news.append(f"steps {plan.first} to {plan.last - 1} will be profiled: stepscope report {where}")

    def _update_stalls(self, running: "Running") -> None:
        from stepscope.analyze.live import explained

        found = {r.rank: s.stall for r in running.ranks if (s := r.status) is not None and s.stall is not None}
        lines = explained(found, len(running.ranks))
        if lines and lines[1:] != self.stalls[1:]:  # the first line has the duration
            self._news += lines
        elif self.stalls and not lines:
            self._news.append("all ranks take steps again")
        self.stalls = lines


def _may_restart(running: "Running") -> bool:
    environment = running.facts.get("environment")
    if not isinstance(environment, dict):
        return False
    counts = [str(environment.get(f"TORCHELASTIC_{name}")) for name in ("MAX_RESTARTS", "RESTART_COUNT")]
    most, done = (whole_number(text) or 0 for text in counts)
    return most > done and any(rank.ended == "killed" for rank in running.ranks)


class LiveSite:
    """The page of one running job, for `stepscope view --live`; the browser reloads it every two seconds."""

    def __init__(self, given: str, *, flops_per_step: float | None = None, peak_tflops: float | None = None) -> None:
        self._watched = WatchedJob(given, flops_per_step=flops_per_step, peak_tflops=peak_tflops)
        self._refreshing = threading.Lock()
        self._refresh()  # a folder without a run is an error before anything is served

    @property
    def name(self) -> str:
        """The run's name."""
        return self._watched.folder.absolute().name

    def __call__(self, path: str, query: Mapping[str, str]) -> "Answer | None":
        if path != "":
            return None
        with self._refreshing:
            if time.monotonic() - self._refreshed_s > 1:
                self._refresh()
            return self._answer

    def _refresh(self) -> None:
        from stepscope.report.html.sheets import sheet_page
        from stepscope.report.pages.live import live_sheet
        from stepscope.report.view.server import Answer

        watched = self._watched
        over = watched.refresh()
        sheet = live_sheet(self.name, watched.take_document(), watched.picture, said=watched.said)
        again = {} if over else {"Refresh": str(_REFRESH_S)}  # a finished job is not queried again
        self._answer = Answer(sheet_page(sheet).encode(errors="replace"), "text/html", again)
        self._refreshed_s = time.monotonic()
