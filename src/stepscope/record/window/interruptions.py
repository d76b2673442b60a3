"""What interrupts the training thread at any moment, also inside our own code: garbage collection, compilation, and
stacks that anomaly detection keeps.

They are told of in the middle of something else, so here they are only noted. Whoever works out the regions of a step
takes them from here and gives their time to a region of their own, off the region that was innermost at that moment.
"""

from dataclasses import dataclass
from threading import get_ident
from time import perf_counter_ns

_TOGETHER_NS = 500_000


@dataclass(frozen=True, slots=True)
class Interruption:
    """One of them; `own_ns` is its time without those inside it."""

    name: str
    begin_ns: int
    end_ns: int
    own_ns: int


class Interruptions:
    """Those that were noted and not yet taken. Empty is False, which is all that is asked at most edges of regions."""

    def __init__(self) -> None:
        self._noted: list[Interruption] = []
        self._open: dict[tuple[int, str], int] = {}

    def __len__(self) -> int:
        return len(self._noted)

    def begins(self, name: str) -> None:
        """Note the begin of one on this thread; inside one of the same name it counts as part of that."""
        self._open.setdefault((get_ident(), name), perf_counter_ns())

    def ends(self, name: str) -> None:
        """Note its end."""
        begin_ns = self._open.pop((get_ident(), name), None)
        if begin_ns is None:
            return
        end_ns = perf_counter_ns()
        inside_ns = sum(i.own_ns for i in self._noted if i.begin_ns >= begin_ns)
        self._noted.append(Interruption(name, begin_ns, end_ns, max(0, end_ns - begin_ns - inside_ns)))

    def add(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Note a short one that comes very often; those right after one another are one."""
        own_ns = end_ns - begin_ns
        if self._noted and (last := self._noted[-1]).name == name and begin_ns - last.end_ns < _TOGETHER_NS:
            self._noted[-1] = Interruption(name, last.begin_ns, end_ns, last.own_ns + own_ns)
        else:
            self._noted.append(Interruption(name, begin_ns, end_ns, own_ns))

    def taken(self, *, before_ns: int) -> list[Interruption]:
        """Return those that began before a moment, oldest first; they are no longer here."""
        noted, self._noted = self._noted, []
        self._noted += [i for i in noted if i.begin_ns >= before_ns]
        return sorted((i for i in noted if i.begin_ns < before_ns), key=lambda i: i.begin_ns)
