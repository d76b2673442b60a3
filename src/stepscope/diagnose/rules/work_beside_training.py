"""`host-stall` by line: what the loop does in every step that is no pass of the model.

Where the host is the device nothing idles while it copies weights, hashes, sorts or writes, so no gap shows it. On a
device, statistics and copies are kernels like any other. Only the lines tell (`analyze/owners/loop_lines.py`).
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import RankLines
from stepscope.analyze.owners.loop_lines import LoopLine, loop_lines, loops
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.owned_change import at, without_lines
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.where import MAX_PLACES
from stepscope.units import ms

_MIN_SHARE = 0.01
"""of the step: less is no line of its own"""
_MAX_OF_TYPICAL = 2.0
"""times what a line takes in the median step is the most that it claims: the rest is of few steps, a machine that had
other things to do"""
_NEARLY_ALL = 0.9
"""of a line's time is in a line that it calls: that one is named"""
_MUCH = 0.25
_MAX_CALLED = 3
_MIN_CALLED = 0.1
"""of the line's time: what is called less is not named"""


def work_beside_training(account: Account) -> list[Candidate]:
    """Return the lines, or loops of lines, that most ranks run beside training."""
    known = [one for one in account.line_work if one is not None]
    if account.step is None or not known:
        return []
    least = _MIN_SHARE * account.step.step_ns
    found: dict[Line, list[tuple[Line, ...]]] = defaultdict(list)
    for one in known:
        steady = [line for line in loop_lines(one).values() if line.typical_ns > 0]
        for group in loops(steady, [line for line, work in one.lines.items() if not work.apart]):
            if sum(line.longer_ns for line in group) >= least:
                largest = max(group, key=lambda line: line.longer_ns)
                found[largest.line].append(tuple(line.line for line in group))
    return [_candidate(account, groups[0]) for groups in found.values() if 2 * len(groups) > len(known)]


def _candidate(account: Account, lines: tuple[Line, ...]) -> Candidate:
    ranks = [known for known in account.line_work if known is not None and any(line in known.lines for line in lines)]
    each = [[loop_lines(one)[line] for line in lines if line in loop_lines(one)] for one in ranks]
    took = [sum(min(line.mean_ns, _MAX_OF_TYPICAL * line.typical_ns) for line in mine) for mine in each]
    on_device = [sum(line.device_ns for line in mine) for mine in each]
    first = next(mine[0] for mine in each if mine)
    places = _places(each, lines)
    if len(lines) == 1:
        lines = (places[0][0],)
    place, host_ns, device_ns = _named(lines), float(np.mean(took)), float(np.mean(on_device))
    called = _called(ranks, lines)
    below = f", mostly in {called[0][0]}" if called and called[0][1] >= MIN_MOSTLY * host_ns else ""
    beside = f" and {ms(device_ns):.1f} ms of the device" if device_ns else ""
    workers = " or in the loader's workers (it stands before forward and may prepare the input)"
    elsewhere = "" if beside else f", in another thread{workers if first.before_forward else ''}"
    changes = any(line.in_place for mine in each for line in mine)
    title, why, remedy = (
        f"{place} works beside training in every step",
        "it is no part of forward, backward, optimizer or loader, and no gradient goes through it",
        f"Do it every N steps{elsewhere}, or delete it: whether training needs it the trace cannot tell.",
    )
    if first.of_gradients:
        title, why, remedy = (
            f"{place} runs on gradients inside every backward",
            "backward calls it, as a hook; it changed nothing in place",
            "Where it only looks at gradients, do it every N steps or delete it. Where it returns another gradient, do "
            "that once after backward for all of them (torch.nn.utils.clip_grad_norm_): the trace cannot tell which it is.",
        )
    return Candidate(
        id="host-stall",
        title=title,
        cause=f"{place} takes {ms(host_ns):.1f} ms{' of the host' if beside else ''} per step{beside}{below}; {why}",
        remedy=f"{remedy} The saving is of the step without it; every N steps saves all but one Nth of that.",
        change=without_lines(account, lines),
        limit_ns=max(map(sum, zip(took, on_device, strict=True))),
        claim=place,
        cost_ns=max(host_ns, device_ns),
        evidence=(
            Evidence("host time beside training per step", host_ms(host_ns), "ms", place),
            *((Evidence("device time of the line per step", host_ms(device_ns), "ms", place),) if beside else ()),
            *(Evidence("of that in what it calls", host_ms(ns), "ms", name) for name, ns in called),
        ),
        sureness=0.6 if changes or first.before_forward or first.of_gradients else 0.7,
        where=tuple(at(line, share=share) for line, share in places[:MAX_PLACES]),
        what_if=("--without", place),
        on_device=device_ns > host_ns,
        subject=f"{'work on gradients' if first.of_gradients else 'work beside training'} ({place})",
    )


def _named(lines: Sequence[Line]) -> str:
    (file, first), (_, last) = lines[0], lines[-1]
    return f"{file}:{first}" if first == last else f"{file}:{first}-{last}"


def _places(each: Sequence[Sequence[LoopLine]], lines: Sequence[Line]) -> list[tuple[Line, float]]:
    """Return the lines of a loop, the largest first; of a single line what it calls: the innermost line that holds
    nearly all of its time, the line itself, and others that hold much of it.
    """
    if len(lines) > 1:
        return _shares(each, lines)
    inside = next(mine[0].inside for mine in each if mine)
    whole = [line for line, share in inside.items() if share >= _NEARLY_ALL]
    others = sorted((line for line in inside if line not in whole), key=lambda line: -inside[line])
    named = [(line, inside[line]) for line in whole[-1:]] + [(lines[0], 1.0)]
    return named + [(line, inside[line]) for line in others if inside[line] >= _MUCH]


def _shares(each: Sequence[Sequence[LoopLine]], lines: Sequence[Line]) -> list[tuple[Line, float]]:
    """Return each line's share of the time of all of them, the largest first."""
    took = {line: sum(one.typical_ns for mine in each for one in mine if one.line == line) for line in lines}
    total = max(sum(took.values()), 1.0)
    return sorted(((line, ns / total) for line, ns in took.items()), key=lambda item: -item[1])


def _called(ranks: Sequence[RankLines], lines: Sequence[Line]) -> list[tuple[str, float]]:
    """Return the operators and functions that lines spend most of their time in, with ns per step."""
    found: dict[str, float] = defaultdict(float)
    for known in ranks:
        owned, steps = known.owned, max(len(known.owned.rank.steps), 1)
        holds = np.zeros(len(owned.stacks) + 1, bool)
        for line in lines:
            if line in known.lines:
                holds |= known.holding(line)
        for name, ns in [*_functions(known, holds, set(lines)), *_operators(known, holds)]:
            found[name] += ns / steps / len(ranks)
    total = max(found.values(), default=0.0)
    largest = sorted(found.items(), key=lambda item: -item[1])[:_MAX_CALLED]
    return [(name, ns) for name, ns in largest if ns >= _MIN_CALLED * total]


def _operators(known: RankLines, holds: np.ndarray) -> list[tuple[str, float]]:
    owned = known.owned
    calls, strings = owned.calls, owned.rank.trace.strings
    mine = holds[owned.by_call.stack] & (calls.parent < 0) & (owned.rank.steps.of(calls.start_ns) >= 0)
    names, at_ = np.unique(calls.name[mine], return_inverse=True)
    took = np.bincount(at_, (calls.end_ns - calls.start_ns)[mine], minlength=len(names))
    return [(strings[name], float(ns)) for name, ns in zip(names.tolist(), took.tolist(), strict=True)]


def _functions(known: RankLines, holds: np.ndarray, lines: set[Line]) -> list[tuple[str, float]]:
    """Return the Python functions that ran below the lines outside operators."""
    owned = known.owned
    host = owned.host
    mine = holds[host.owner.stack] & host.is_python & host.runs & (owned.rank.steps.of(host.start_ns) >= 0)
    took = np.bincount(host.owner.stack[mine], (host.end_ns - host.start_ns)[mine], minlength=len(owned.stacks))
    found = []
    for stack in np.flatnonzero(took).tolist():
        frame = owned.frames[owned.stacks.innermost[stack]]
        if (frame.file, frame.line) not in lines:
            found.append((f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})", float(took[stack])))
    return found
