"""Who owns each operator, each moment of the host and each device operation of a rank?

operator of an undisturbed step   the owner of the operator it matches; else of the one around it; else what its
                                  neighbours' stacks have in common (it ran between their lines)
Python between two operators      the stacks of the same gap in the step with frames, in their shares there
device operation, runtime call    the operator that launched it, else the Python at that moment
collective                        the operator that asked for it
"""

import re
from collections.abc import Sequence
from dataclasses import fields
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host_calls import HostCalls
from stepscope.analyze.stacks import NOBODY, Mask, Stacks
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError
from stepscope.intervals import Intervals, union
from stepscope.records import ArrayRecord
from stepscope.run.device_work import Rows
from stepscope.run.owners import Frame
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

# Python between two operators that takes longer is not stretched by the profiler; shorter stretches are part of what
# recording their neighbours costs
_MIN_PYTHON_NS = 20_000
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, repr=False)
class OwnedWork(ArrayRecord):
    """Owners of some things, one entry each; NOBODY where unknown."""

    #: whose it is: in backward the forward operator's
    stack: Ids
    #: where it was called: in backward the line of `loss.backward()`
    caller: Ids
    module: Ids
    backward: Mask

    def __len__(self) -> int:
        return len(self.stack)

    def at(self, index: npt.NDArray[np.integer]) -> "OwnedWork":
        """Return the owners at these places, nobody at -1."""
        if not len(self):
            return nobody(len(index))
        known = index >= 0

        stack, caller, module = (
            np.where(known, ids[index], NOBODY).astype(np.int32) for ids in (self.stack, self.caller, self.module)
        )
        return OwnedWork(stack, caller, module, known & self.backward[index])

    def where(self, mask: Mask, other: "OwnedWork") -> "OwnedWork":
        """Return these owners where the mask holds, the others elsewhere."""
        pairs = ((getattr(self, f.name), getattr(other, f.name)) for f in fields(OwnedWork))
        return OwnedWork(*(np.where(mask, mine, theirs) for mine, theirs in pairs))


def nobody(count: int) -> OwnedWork:
    """Return so many things that nobody owns."""
    none = np.full(count, NOBODY, np.int32)
    return OwnedWork(none, none, none, np.zeros(count, bool))


def joined_owners(parts: Sequence[OwnedWork]) -> OwnedWork:
    """Return the owners of several lists of things as one list."""
    return OwnedWork(*(np.concatenate([getattr(p, f.name) for p in (nobody(0), *parts)]) for f in fields(OwnedWork)))


@dataclass(frozen=True, eq=False, repr=False)
class HostTime(ArrayRecord):
    """The time of the threads that training waits for, cut by owner, sorted by thread and start."""

    thread: Int64s
    start_ns: Int64s
    end_ns: Int64s
    owner: OwnedWork
    #: in no operator
    is_python: Mask
    #: on the training thread: no other thread worked for it meanwhile; on the others: an operator
    runs: Mask

    def __len__(self) -> int:
        return len(self.start_ns)

    def at(self, thread: Int64s, moment_ns: Int64s) -> Int64s:
        """Return the index of the span at each moment of a thread, -1 for none."""
        out = np.full(len(moment_ns), -1, np.int64)
        for one in distinct(thread):
            low, high = np.searchsorted(self.thread, [one, one + 1])
            mine = np.flatnonzero(thread == one)
            i = low + np.searchsorted(self.start_ns[low:high], moment_ns[mine], side="right") - 1
            fits = (i >= low) & (moment_ns[mine] < self.end_ns[np.maximum(i, 0)]) if len(self) else np.zeros(0, bool)
            out[mine[fits]] = i[fits]
        return out


@dataclass(frozen=True, eq=False, repr=False)
class Ownership(ArrayRecord):
    """The owners of everything one rank did in its recorded steps."""

    rank: Rank
    #: `executing` lines, or those where `functions` are defined
    lines: str
    frames: tuple[Frame, ...]
    stacks: Stacks
    modules: tuple[str, ...]
    calls: HostCalls
    #: per entry of `calls`
    by_call: OwnedWork
    host: HostTime
    #: per row of the rank's DeviceWork
    by_work: OwnedWork
    #: per row of the rank's Collectives
    by_collective: OwnedWork
    #: of the operators in recorded steps: have a counterpart with frames; None where these steps have frames
    matched_share: float | None
    #: what was left out
    notes: tuple[str, ...] = ()

    def of_rows(self, rows: npt.NDArray[np.integer]) -> OwnedWork:
        """Return the owners of rows of the event table: operators, calls, kernels, memory events."""
        trace = self.rank.trace
        own = self.by_call.at(self.calls.at_rows(rows))
        middle = trace["ts_ns"][rows] + np.maximum(trace["dur_ns"][rows], 0) // 2  # of those that cross others too
        moment = self.host.owner.at(self.host.at(trace["tid"][rows], middle))
        on_device = self.by_work.at(self._work_of_row[rows])
        return on_device.where(self._work_of_row[rows] >= 0, own.where(own.stack >= 0, moment))

    @cached_property
    def runtime_calls(self) -> tuple[Rows, OwnedWork]:
        """Return the rows of calls into the device's runtime, and their owners."""
        rows = np.flatnonzero(self.rank.kinds == EventKind.RUNTIME)
        return rows, self.of_rows(rows)

    @cached_property
    def long_python(self) -> Intervals:
        """Return when the host ran Python for so long that the profiler did not stretch it."""
        mine = self.host.is_python & self.host.runs
        whole = union(self.host.start_ns[mine], self.host.end_ns[mine])
        long = whole.end - whole.start >= _MIN_PYTHON_NS
        return Intervals(whole.start[long], whole.end[long])

    @cached_property
    def _work_of_row(self) -> Int64s:
        out = np.full(self.rank.trace.num_events, -1, np.int64)
        out[self.rank.work.row] = np.arange(len(self.rank.work))
        return out

    def running(self, chosen: Mask) -> Intervals:
        """Return when the host worked for chosen spans of `host`."""
        keep = chosen & self.host.runs
        return union(self.host.start_ns[keep], self.host.end_ns[keep])

    def holding(self, frames: Sequence[int]) -> Mask:
        """Return which stacks have any of these frames, one entry more for NOBODY."""
        chosen = np.zeros(len(self.frames), bool)
        chosen[np.asarray(frames, np.int64)] = True
        return self.stacks.holding(chosen)


# Owners by name: `train.py:42`, `train.py:40-44`, `module:layers.*.bn`.
#
# A line stands for everything that has it anywhere in its stack, in backward also for what the line of
# `loss.backward()` called. A module stands for itself and the modules inside it; `*` in a pattern is one name or part
# of one between two dots, and the pattern may begin at any of them: `bn` is every module of that name.

_MODULE = "module:"
_LINE = re.compile(r"^(?P<file>.+):(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?$")
_MAX_NAMED = 6


@dataclass(frozen=True)
class OwnerName:
    """A line, some lines in a row, or modules by pattern."""

    text: str
    file: str = ""
    first: int = 0
    last: int = 0
    pattern: str = ""

    def chosen(self, owned: Ownership, things: OwnedWork) -> Mask:
        """Return which of some things of a rank are the owner's."""
        if self.pattern:
            fits = np.array([*(_module_fits(path, self.pattern) for path in owned.modules), False], bool)
            return fits[things.module]
        holding = owned.holding([i for i, f in enumerate(owned.frames) if self._holds(f.file, f.line)])
        return holding[things.stack] | holding[things.caller]

    def _holds(self, file: str, line: int) -> bool:
        return self.first <= line <= self.last and _same_file(file, self.file)


def owner_name(text: str, owned: Sequence[Ownership]) -> OwnerName:
    """Return what a name stands for in a run; a `UsageError` that says what there is where it stands for nothing."""
    if text.startswith(_MODULE):
        return _module(text, owned)
    found = _LINE.match(text)
    if found is None:
        raise UsageError(f"{text}: write FILE:LINE such as train.py:42, or module:GLOB such as module:layers.*.bn")
    first = int(found["first"])
    name = OwnerName(text, found["file"], first, int(found["last"] or first))
    files = {f.file for one in owned for f in one.frames if _same_file(f.file, name.file)}
    if not files:
        raise UsageError(f"{text}: no line of {name.file} ran in the recorded steps; {_files(name.file, owned)}")
    if len(files) > 1 and name.file not in files:
        listed = ", ".join(sorted(files)[:_MAX_NAMED])
        raise UsageError(f"{text}: several files end in {name.file} ({listed}); say which")
    lines = sorted({f.line for one in owned for f in one.frames if f.file in files})
    if not any(name.first <= line <= name.last for line in lines):
        listed = ", ".join(map(str, sorted(sorted(lines, key=lambda line: abs(line - first))[:_MAX_NAMED])))
        raise UsageError(f"{text}: nothing recorded was called from that line; lines of that file near it: {listed}")
    return name


def _module(text: str, owned: Sequence[Ownership]) -> OwnerName:
    pattern = text.removeprefix(_MODULE)
    paths = {path for one in owned for path in one.modules if path}
    if not pattern or not any(_module_fits(path, pattern) for path in paths):
        listed = ", ".join(_near(pattern, sorted(paths))) or "none, because no module was recorded"
        raise UsageError(f"{text}: no module of that name ran in the recorded steps; there are {listed}")
    return OwnerName(text, pattern=pattern)


def _same_file(path: str, given: str) -> bool:
    """Return whether a path is the given one or ends in it.

    >>> same_file("data/augment.py", "augment.py"), same_file("mytrain.py", "train.py")
    (True, False)
    """
    plain = given.removeprefix("./")
    return path == plain or path.endswith("/" + plain)


def _module_fits(path: str, pattern: str) -> bool:
    """Return whether a module is one of a pattern's, or inside one.

    >>> [module_fits(p, "layers.*.bn") for p in ("model.layers.3.bn", "layers.3.bn.scale", "layers.3.mlp.bn")]
    [True, True, False]
    """
    names, wanted = path.split("."), pattern.split(".")
    starts = range(len(names) - len(wanted) + 1)
    return any(all(fnmatchcase(n, w) for n, w in zip(names[at:], wanted, strict=False)) for at in starts)


def _files(given: str, owned: Sequence[Ownership]) -> str:
    near = _near(given, sorted({f.file for one in owned for f in one.frames if f.is_user}))
    return f"files with recorded lines are {', '.join(near)}" if near else "no file of the user's has recorded lines"


def _near(given: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches  # only for names that are wrong

    return get_close_matches(given, known, n=_MAX_NAMED, cutoff=0.3) or known[:_MAX_NAMED]
