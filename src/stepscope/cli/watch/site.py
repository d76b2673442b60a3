"""What `stepscope view --live` answers: one page, made from a look at the job that is a second old at most."""

import threading
import time
from collections import deque
from collections.abc import Mapping

from stepscope.analyze.live import GivenNumbers
from stepscope.cli.given.attempts import newest_attempt
from stepscope.cli.watch.watched import WatchedJob
from stepscope.report.live import POLICY, live_page
from stepscope.report.view.server import Answer

_FRESH_S = 1.0
_KEPT_NEWS = 200


class LiveSite:
    """The page of one running job; readers share a look."""

    def __init__(self, given: str, *, flops_per_step: float | None = None, peak_tflops: float | None = None) -> None:
        self._watched = WatchedJob(newest_attempt(given), GivenNumbers(flops_per_step, peak_tflops))
        self._news: deque[str] = deque(maxlen=_KEPT_NEWS)
        self._looking = threading.Lock()
        self._looked_s = 0.0
        self._page = ""
        self._look()  # what is no run is said before anything is served

    @property
    def name(self) -> str:
        """The run's name."""
        return self._watched.folder.absolute().name

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        if path != "":
            return None
        with self._looking:
            if time.monotonic() - self._looked_s > _FRESH_S:
                self._look()
            return Answer(self._page.encode(errors="replace"), "text/html", {"Content-Security-Policy": POLICY})

    def _look(self) -> None:
        watched = self._watched
        over = watched.look()
        self._news += [f"{time.strftime('%H:%M:%S')} {line}" for line in watched.news]
        watched.news.clear()
        assert watched.picture is not None
        alarms = list(watched.alarms.up.values())
        self._page = live_page(
            self.name, watched.picture, alarms=alarms, stalls=watched.stalls, news=[*self._news], over=over
        )
        self._looked_s = time.monotonic()
