"""Who allocated: which operator, and which line of the user's code, was the host in at a moment?"""

import re
import sys

import numpy as np

from stepscope.analyze.host.calls import HostCalls, call_stacks
from stepscope.contract.regions import EVALUATE
from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, rows_named
from stepscope.trace.table import Int64s

NOBODY = -1
_FRAME = re.compile(r"^(?P<path>[^<(][^(]*)\(\d+\): ")
_LIBRARIES = re.compile(r"(^|/)(torch|site-packages|dist-packages|lightning|accelerate|transformers|deepspeed)/")


@dataclass(frozen=True)
class Holder:
    """What one operator or line holds at a moment."""

    name: str
    size_bytes: int
    blocks: int


def operators_at(calls: HostCalls, thread: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the string id of the outermost operator at each moment, NOBODY where there was none."""
    at = calls.innermost_at(thread, moment_ns)
    if not len(calls):
        return at
    while (inner := (at >= 0) & (calls.parent[at] >= 0)).any():
        at[inner] = calls.parent[at[inner]]
    return np.where(at >= 0, calls.name[at], NOBODY)


def source_lines_at(rank: Rank, thread: Int64s, moment_ns: Int64s) -> Int64s:
    """Return the string id of the innermost frame of the user's code at each moment, NOBODY where there was none."""
    frames = _user_frames(rank)
    at = frames.innermost_at(thread, moment_ns)
    return np.where(at >= 0, frames.name[at], NOBODY) if len(frames) else at


def holders(rank: Rank, name_id: Int64s, size_bytes: Int64s, *, most: int) -> tuple[Holder, ...]:
    """Return what each name holds, the largest first; blocks of nobody are left out."""
    known = name_id != NOBODY
    ids, back, count = np.unique(name_id[known], return_inverse=True, return_counts=True)
    held = np.bincount(back, size_bytes[known], minlength=len(ids))
    order = np.argsort(-held, kind="stable")[:most]
    return tuple(Holder(readable(rank.trace.strings[ids[i]]), int(held[i]), int(count[i])) for i in order)


def readable(operator: str) -> str:
    """Return an operator's name without what the autograd engine puts before it."""
    return operator.removeprefix(f"{EVALUATE}: ")


def _user_frames(rank: Rank) -> HostCalls:
    """Return the frames of the user's own code as call stacks."""
    frames = np.flatnonzero(rank.kinds == EventKind.PYTHON)
    return call_stacks(rank.trace, rows_named(rank.trace, frames, _is_users))


def _is_users(frame: str) -> bool:
    """Return whether a frame (`train.py(33): step`) is neither a library's nor python's own."""
    found = _FRAME.match(frame)
    if not found or _LIBRARIES.search(found["path"]) or not found["path"].endswith(".py"):
        return False
    first = found["path"].split("/")[0].removesuffix(".py")
    return first not in sys.stdlib_module_names
