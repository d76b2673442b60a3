"""Which operator of the step with frames is each operator of the undisturbed steps?

On a thread the sequence of (depth, name) is the same in every step, so operators are matched by their order, step by
step and thread by thread. Where a step has operators that the other has not, whole calls (an operator with all that it
calls) are laid side by side first, and what is left by single operators.

    step 7        [linear [addmm]] [relu] [item]            [backward ...]
    with frames   [linear [addmm]] [relu]        [print]    [backward ...]
    matched        0       1        2     -1                 4 ...
"""

import re

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import HostCalls, call_stacks
from stepscope.analyze.owners.align import NOTHING, Tries, aligned
from stepscope.analyze.owners.linked import LinkedThread
from stepscope.analyze.step.regions import Marks
from stepscope.contract.owners import AUTOGRAD, TRAINING
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.owners import RankOwners
from stepscope.run.rank import Rank
from stepscope.run.steps import PROFILER_STEP
from stepscope.stats.distinct import distinct
from stepscope.trace.classify import EventKind, by_string, of_kinds
from stepscope.trace.table import Int64s

_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_DIGITS = re.compile(r"\d+")
_MAX_DEPTH = 1 << 20


@dataclass(frozen=True, eq=False, repr=False)
class OperatorMatch(ArrayRecord):
    """For each call of a rank: the thread of the file and the position on it, NOTHING where it has none."""

    calls: HostCalls
    thread: npt.NDArray[np.int32]
    """index into the linked threads"""
    position: Int64s
    """index into that thread's operators"""


def operators_and_ranges(rank: Rank) -> HostCalls:
    """Return what the file of owners lists too: operators and ranges, without the profiler's marks of steps."""
    rows = np.flatnonzero(of_kinds(rank.kinds, (EventKind.HOST_OP, EventKind.ANNOTATION)))
    marks = by_string(rank.trace, rank.trace["name"][rows], lambda s: s.startswith(PROFILER_STEP + "#"))
    return call_stacks(rank.trace, rows[marks == 0])


def matched(rank: Rank, marks: Marks, owners: RankOwners, threads: list[LinkedThread]) -> OperatorMatch:
    """Return the operators of the recorded steps matched to those of the steps with frames."""
    calls = operators_and_ranges(rank)
    key_of_name = _Names()
    names = np.array([key_of_name.id_of(rank.trace.strings[i]) for i in range(len(rank.trace.strings))], np.int64)
    own_names = np.array([key_of_name.id_of(name) for name in owners.names], np.int64)
    keys = names[calls.name] * _MAX_DEPTH + _depths(calls)
    step = rank.steps.recorded.of(calls.start_ns)  # frames are of single steps
    thread = np.full(len(calls), NOTHING, np.int32)
    position = np.full(len(calls), NOTHING, np.int64)
    tries = Tries()
    for tid, index in _pairs(calls, marks, threads):
        known = threads[index]
        known_keys = own_names[known.thread.name[known.at]] * _MAX_DEPTH + known.depth
        low, high = np.searchsorted(calls.thread, [tid, tid + 1])
        found = _by_step(keys[low:high], step[low:high], known_keys, known.thread.step[known.at], tries)
        position[low:high] = found
        thread[low:high][found != NOTHING] = index
    return OperatorMatch(calls, thread, position)


class _Names:
    """Numbers of names; those of ranges without the numbers in them, which count steps."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def id_of(self, name: str) -> int:
        plain = name if "::" in name else _DIGITS.sub("0", name)
        return self._ids.setdefault(plain, len(self._ids))


def _depths(calls: HostCalls) -> Int64s:
    depth, current = np.zeros(len(calls), np.int64), calls.parent
    while (inside := current >= 0).any():
        depth += inside
        current = np.where(inside, calls.parent[current], -1)
    return np.minimum(depth, _MAX_DEPTH - 1)


def _pairs(calls: HostCalls, marks: Marks, threads: list[LinkedThread]) -> list[tuple[int, int]]:
    """Return which thread of the trace is which of the file: by role, the busiest with the busiest."""
    tids, count = np.unique(calls.thread, return_counts=True)
    busiest = tids[np.argsort(-count, kind="stable")].tolist()
    autograd = set(marks.autograd_threads.tolist())
    by_role: dict[str, list[int]] = {}
    for tid in busiest:
        role = TRAINING if tid == marks.main_thread else AUTOGRAD if tid in autograd else ""
        by_role.setdefault(role, []).append(tid)
    found = []
    for role in (TRAINING, AUTOGRAD, ""):
        known = [i for i, t in enumerate(threads) if t.thread.role == role or (not role and _is_other(t))]
        known.sort(key=lambda i: -len(threads[i]))
        found += list(zip(by_role.get(role, []), known, strict=False))
    return found


def _is_other(thread: LinkedThread) -> bool:
    return thread.thread.role not in (TRAINING, AUTOGRAD)


def _by_step(keys: Int64s, step: npt.NDArray[np.int32], known: Int64s, known_step: Int64s, tries: Tries) -> Int64s:
    """Return for each operator of a thread its position among the known ones.

    Of several steps with frames the one most like a step is laid beside it; what it lacks the others may have.
    """
    out = np.full(len(keys), NOTHING, np.int64)
    samples = [np.flatnonzero(known_step == s) for s in distinct(known_step)]
    seen: dict[bytes, Int64s] = {}
    for s in distinct(step[step >= 0]).tolist():
        mine = np.flatnonzero(step == s)
        content = keys[mine].tobytes()
        if content not in seen:
            seen[content] = _best(keys[mine], known, samples, tries)
        out[mine] = seen[content]
    return out


def _best(keys: Int64s, known: Int64s, samples: list[Int64s], tries: Tries) -> Int64s:
    out = np.full(len(keys), NOTHING, np.int64)
    for sample in sorted(samples, key=lambda one: abs(len(one) - len(keys))):
        if (missing := out == NOTHING).any():
            found = _laid_together(keys, known[sample], tries)
            use = missing & (found != NOTHING)
            out[use] = sample[found[use]]
    return out


def _laid_together(keys: Int64s, known: Int64s, tries: Tries) -> Int64s:
    """Return positions by whole calls first, then by single operators between those."""
    if len(keys) == len(known) and np.array_equal(keys, known):
        return np.arange(len(keys))
    tops, known_tops = _top_calls(keys), _top_calls(known)
    whole = aligned(_content(keys, tops), _content(known, known_tops), tries)
    out = np.full(len(keys), NOTHING, np.int64)
    ends, known_ends = np.append(tops[1:], len(keys)), np.append(known_tops[1:], len(known))
    before = known_before = 0
    fits = np.flatnonzero(whole != NOTHING)
    for top in [*fits.tolist(), len(tops)]:
        last = top == len(tops)
        begin = len(keys) if last else int(tops[top])
        known_begin = len(known) if last else int(known_tops[whole[top]])
        if before < begin and known_before < known_begin:
            between = aligned(keys[before:begin], known[known_before:known_begin], tries)
            out[before:begin] = np.where(between == NOTHING, NOTHING, between + known_before)
        if not last:
            out[begin : ends[top]] = np.arange(known_begin, known_ends[whole[top]])
            before, known_before = int(ends[top]), int(known_ends[whole[top]])
    return out


def _top_calls(keys: Int64s) -> Int64s:
    """Return where calls begin that no other is around."""
    depth = keys % _MAX_DEPTH
    return np.flatnonzero(depth == 0) if len(keys) and depth[0] == 0 else np.append(0, np.flatnonzero(depth == 0))


def _content(keys: Int64s, tops: Int64s) -> Int64s:
    """Return a number for each whole call that tells its operators and how they nest."""
    if not len(keys) or not len(tops):
        return np.empty(0, np.int64)
    mixed = keys.astype(np.uint64) * _MIX
    mixed ^= mixed >> np.uint64(29)
    mixed *= _ODD
    place = np.arange(len(keys)) - np.repeat(tops, np.diff(np.append(tops, len(keys))))
    power = np.cumprod(np.full(int(place.max()) + 1, _ODD, np.uint64))  # wraps around, as a hash may
    return np.add.reduceat(mixed * power[place], tops).view(np.int64)
