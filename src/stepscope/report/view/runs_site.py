"""The pages of a folder of runs: a list that leads to the pages of each run, which are made when they are asked for."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import field

from stepscope.dataclass import dataclass
from stepscope.report.view.server import Answer, Site

MAX_KEPT = 4
"""runs whose pages are kept; a fifth takes the place of the oldest"""
PLACE = "run/"


@dataclass(frozen=True)
class RunsSite:
    """A list of runs, and behind `run/N/` the site of each."""

    list_html: str
    make: tuple[Callable[[], Site], ...]
    """the site of each run, in the order of the list"""
    _made: dict[int, Site] = field(default_factory=dict, repr=False)
    _making: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __call__(self, path: str, query: Mapping[str, str]) -> Answer | None:
        """Return what lies at a path, None where nothing does."""
        if path == "":
            return Answer(self.list_html.encode(errors="replace"), "text/html")
        number, slash, rest = path.removeprefix(PLACE).partition("/")
        place = int(number) if number.isascii() and number.isdigit() and len(number) < 6 else -1
        if not path.startswith(PLACE) or not slash or not 0 <= place < len(self.make):
            return None
        return self._site(place)(rest, query)

    def _site(self, place: int) -> Site:
        with self._making:
            if place not in self._made:
                if len(self._made) >= MAX_KEPT:
                    del self._made[next(iter(self._made))]
                self._made[place] = self.make[place]()
            return self._made[place]


def link_to(place: int) -> str:
    """Return where the list leads for the run at that place."""
    return f"{PLACE}{place}/"
