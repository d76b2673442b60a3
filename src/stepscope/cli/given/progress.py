"""A progress bar on standard error for what takes more than a second: share, rate and time left.

Nothing where nobody watches. rich is imported only where a bar can be seen.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepscope.cli.messages import is_quiet

# takes how much is done of how much
Progress = Callable[[int, int], None]

BYTES = "bytes"
_SHOW_AFTER_S = 1.0
_REDRAWS_PER_S = 10


@contextmanager
def reading_progress() -> Iterator[Progress | None]:
    """Yield a callback for `load`, or None where standard error is no terminal."""
    with work_progress("reading", unit=BYTES) as progress:
        yield progress


@contextmanager
def work_progress(what: str, *, unit: str) -> Iterator[Progress | None]:
    """Yield a callback that takes how much is done of how much, or None where standard error is no terminal.

    `unit` is what is counted, for the rate: `BYTES`, or a plural such as `"slices"`.
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

        columns = (
            TextColumn("{task.description}"),
            BarColumn(30),
            TaskProgressColumn("{task.percentage:3.0f} %"),
            Rate(),
        )
        self._rich = RichProgress(
            *columns,
            console=console(sys.stderr),
            refresh_per_second=_REDRAWS_PER_S,
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
            if not self._shown and time.monotonic() - self._started_s >= _SHOW_AFTER_S:
                self._shown = True
                self._rich.start()
                self._rich.console.show_cursor(True)  # a process that is killed leaves no terminal without one

    def close(self) -> None:
        with self._lock:
            if self._shown:
                self._rich.stop()


def rate_text(per_s: float | None, left_s: float | None, unit: str) -> str:
    """Return rate and remaining time in words, empty where the rate is unknown.

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
