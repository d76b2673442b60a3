"""A progress bar on standard error for work that takes more than a second: share, rate and time left.

rich is imported only if standard error is a terminal.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from stepscope.cli.messages import is_quiet

# called with the amount done and the total
Progress = Callable[[int, int], None]

BYTES = "bytes"


def reading_progress() -> AbstractContextManager[Progress | None]:
    """Return the progress bar of files being read, in bytes."""
    return work_progress("reading", unit=BYTES)


@contextmanager
def work_progress(what: str, *, unit: str) -> Iterator[Progress | None]:
    """Yield a callback that takes the amount done and the total, or None if standard error is no terminal.

    `unit` is what the rate counts: `BYTES`, or a plural such as `"slices"`.
    """
    if is_quiet() or not sys.stderr.isatty():
        yield None
        return
    bar = _Bar(what, unit)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, what: str, unit: str) -> None:
        from rich.progress import BarColumn, ProgressColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.progress import Task as RichTask
        from rich.text import Text

        from stepscope.report.terminal import console

        class Rate(ProgressColumn):
            def render(self, task: RichTask) -> Text:
                return Text(rate_text(task.finished_speed or task.speed, task.time_remaining, unit))

        self._rich = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(30),
            TaskProgressColumn("{task.percentage:3.0f} %"),
            Rate(),
            console=console(sys.stderr),
            refresh_per_second=10,
            transient=True,
            redirect_stdout=False,  # it may be a file: what is printed there is the answer
            redirect_stderr=False,
            get_time=time.monotonic,
        )
        self._task = self._rich.add_task(what, total=None)
        self._started_s = time.monotonic()
        self._shown = False
        self._lock = threading.Lock()

    def update(self, done: int, total: int) -> None:
        with self._lock:
            self._rich.update(self._task, completed=min(done, total), total=total)
            if not self._shown and time.monotonic() - self._started_s >= 1:
                self._shown = True
                self._rich.start()
                self._rich.console.show_cursor(True)  # a killed process must not leave the terminal without a cursor

    def close(self) -> None:
        with self._lock:
            if self._shown:
                self._rich.stop()


def rate_text(per_s: float | None, left_s: float | None, unit: str) -> str:
    """Return rate and remaining time in words, empty if the rate is unknown.

    >>> rate_text(2.5e6, 75.2, BYTES), rate_text(0.05, None, "runs")
    ('2.5 MB/s, 1:16 left', '3.0 runs/min')
    """
    if not per_s:
        return ""
    if unit == BYTES:
        rate = f"{per_s / 1e6:,.1f} MB/s"
    else:
        rate = f"{per_s:,.1f} {unit}/s" if per_s >= 1 else f"{60 * per_s:,.1f} {unit}/min"
    if left_s is None:
        return rate
    minutes, seconds = divmod(-int(-left_s // 1), 60)
    return f"{rate}, {minutes}:{seconds:02d} left"
