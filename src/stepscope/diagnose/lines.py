"""Kinds of findings that are lines of the user's code: what a line does that training could do without, do less often,
do at once for many, or do elsewhere.

A line is described by what can be read off the recording (`LineWork`): whether autograd ran anything back through it,
whether it runs modules, communicates, copies to the host or to the device, changes tensors in place, when it runs in the
step, and by the source text whether what it computes flows into training. The first kind that fits names it.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.kernels import SHORT_NS
from stepscope.analyze.owner_lines import (
    LineWork,
    LoopLine,
    RankLines,
    feeds_training,
    follows_a_pass,
    is_pass,
    loop_lines,
    loops,
    uses_results,
)
from stepscope.analyze.owner_places import MAX_PLACES, MOSTLY
from stepscope.analyze.ownership import Line
from stepscope.analyze.replay.changes import GRADIENT_OPS, Change
from stepscope.diagnose.finding import NEGLIGIBLE, NOTABLE, Evidence, Kind, Match, evidence_ms
from stepscope.diagnose.measures import (
    Mask,
    at,
    critical_ns,
    gradient_groups_only,
    has_device,
    lines_on_all,
    ms_text,
    parts_of_lines,
    place_of,
    ranks_with,
    without_lines,
    without_parts,
)
from stepscope.diagnose.recording import Need, Scope
from stepscope.records import once_per_record
from stepscope.run.side_files import code_text_has_comprehension
from stepscope.stats.robust import among
from stepscope.trace.table import EventKind, by_string

_NEVER = np.iinfo(np.int64).max
# calls of the same thing from one line in one pass that make it a loop, and elements of a comprehension that do
_LOOP, _ELEMENTS = 16, 4
# nodes of autograd whose gradient is of a whole tensor, for a part of it
_OF_PART = re.compile(r"evaluate_function: (Select|Slice|Index|Narrow|Unbind|Split|AsStrided)\w*Backward")
# of what some lines take: one line with as much stands for them
NEARLY_ALL = 0.9


def line_match(account: Account, line: Line, change: Change, **more: object) -> Match:
    """Return a line as a match: its place, its costs as evidence, and `--without` as its what-if."""
    place, known = place_of(line), ranks_with(account, line)
    steps = sum(max(len(one.owned.rank.steps), 1) for one in known)
    total = {name: sum(getattr(one.lines[line], name) for one in known) / steps for name in ("to_host", "collectives")}
    sent = sum(_sent_bytes(one, one.holding(line)[one.owned.by_collective.stack]) for one in known) / steps
    cost = (
        next((one.inclusive for one in account.code.lines if (one.file, one.line) == line), None)
        if account.code
        else None
    )
    evidence = []
    if cost is not None:
        times = {"host": cost.host_ns + cost.blocked_ns, "device": cost.device_ns, "communication": cost.comm_ns}
        evidence = [evidence_ms(f"{what} time of the line {{per_step}}", ns, place) for what, ns in times.items() if ns]
    counted = (("copies to the host", total["to_host"], "copies"), ("collectives", total["collectives"], "calls"))
    evidence += [Evidence(f"{what} {{per_step}}", round(n, 1), unit, place) for what, n, unit in counted if n]
    if sent:
        evidence.append(Evidence("bytes sent {per_step}", round(sent), "bytes", place))
    facts = {"place": place, "copies": f"{total['to_host']:.0f}", "collectives": f"{total['collectives']:.0f}"}
    found = Match(
        change, facts=facts, evidence=tuple(evidence), where=(at(line),), what_if=("--without", place), claim=place
    )
    return replace(found, **more) if more else found  # type: ignore[arg-type]


def _without_each(lines: Callable[[Account], list[Line]]) -> Callable[[Account], Iterator[Match]]:
    return lambda account: (line_match(account, line, without_lines(account, [line])) for line in lines(account))


def _removed(wanted: Callable[[RankLines, LineWork], bool]) -> Callable[[Account], Iterator[Match]]:
    """Return what matches the lines of a condition, with the step without them as the counterfactual."""
    return _without_each(lambda account: lines_on_all(account, wanted))


def _ran(work: LineWork) -> Mask:
    return work.last_ns > -_NEVER


# Communication that a training wrapper does not need.


def _sent_bytes(rank: RankLines, chosen: Mask) -> int:
    c = rank.owned.rank.collectives
    return int(np.maximum(c.full_bytes[chosen & (c.step >= 0)], 0).sum())


def _gradient_bytes(rank: RankLines, chosen: Mask) -> int:
    return _sent_bytes(rank, chosen & among(rank.owned.rank.collectives.op, GRADIENT_OPS))


def _sends_again(rank: RankLines, work: LineWork) -> bool:
    """Return whether a line between backward and optimizer sends as much as the wrapper sent in backward: the gradients
    once more. A norm or a flag is next to nothing compared with it.
    """
    ran = _ran(work)
    if not work.collectives or work.modules or work.has_backward or work.optimizes or not ran.any():
        return False
    between = (work.first_ns > rank.backward_ns) & (work.last_ns < rank.optimizer_ns)
    owner = rank.owned.by_collective
    wrapper = _gradient_bytes(rank, owner.backward)
    mine = _gradient_bytes(rank, among(owner.stack, work.stacks) & ~owner.backward)
    return bool(between[ran].all()) and mine >= 0.9 * wrapper > 0


@once_per_record
def _lines_sending_again(account: Account) -> list[Line]:
    return lines_on_all(account, _sends_again) if gradient_groups_only(account) else []


@once_per_record
def _extra_lines(account: Account) -> list[Line]:
    """Return lines that communicate outside forward, backward and optimizer, where a wrapper synchronises gradients."""
    known = [one for one in account.ownership if one is not None]
    wrapped = [bool((one.by_collective.backward & (one.rank.collectives.step >= 0)).any()) for one in known]
    return lines_on_all(account, _is_extra) if known and all(wrapped) and gradient_groups_only(account) else []


def needless_rows(account: Account) -> list[Mask]:
    """Return which collectives of each rank a training wrapper does not need: gradients sent again, or extra ones."""
    lines = [*_lines_sending_again(account), *_extra_lines(account)]
    return [
        np.zeros(len(rank.collectives), bool)
        if known is None or not lines
        else known.holding_any(lines)[known.owned.by_collective.stack]
        for rank, known in zip(account.run.ranks, account.line_work, strict=True)
    ]


def _is_extra(rank: RankLines, work: LineWork) -> bool:
    ran = _ran(work)
    if not work.apart or not work.collectives or work.modules or not ran.any():
        return False
    after = (work.first_ns > rank.backward_ns) & (work.first_ns > rank.optimizer_ns)
    return bool(((work.last_ns < rank.forward_ns) | after)[ran].all())


# A forward pass of the trained model through which nothing goes back.


def _second_forward(account: Account) -> Iterator[Match]:
    """Yield lines that run the trained modules once more: after the last backward, where no loss of the step can have it, or elsewhere where the source shows that no loss has it."""

    def unused(rank: RankLines, work: LineWork) -> bool:
        if work.has_backward or work.optimizes or not work.modules:
            return False
        # the model, not a frozen one beside it
        ran = work.last_ns > work.first_ns
        if len(work.modules & rank.trained) < MOSTLY * len(work.modules) or not ran.any():
            return False
        after = (work.first_ns[ran] > rank.backward_ns[ran]).all()
        if after and work.apart and not work.in_place:
            return True
        return feeds_training(account.run.source, rank, work.line) is False

    for line in lines_on_all(account, unused):
        modules = max(len(known.lines[line].modules) for known in ranks_with(account, line))
        found = line_match(account, line, without_lines(account, [line]), on_device=has_device(account))
        yield replace(found, facts={**found.facts, "modules": modules})


# Copies between host and device in the loop.


def _statistics(account: Account) -> list[Line]:
    """Return lines that copy results to the host of which training uses nothing, as far as the source shows."""

    def wanted(rank: RankLines, work: LineWork) -> bool:
        brings = work.apart and work.to_host > 0 and not work.in_place and not work.collectives
        return brings and feeds_training(account.run.source, rank, work.line) is not True

    return lines_on_all(account, wanted)


def _only_copies(_: RankLines, work: LineWork) -> bool:
    return work.to_device > 0 and not (work.has_backward or work.optimizes or work.collectives)


def _created_on_host(rank: RankLines, work: LineWork) -> bool:
    """Return whether a line inside a module's forward makes tensors on the host and copies them to the device."""
    return _only_copies(rank, work) and not work.to_host and _inside_module(rank, work)


def _inside_module(rank: RankLines, work: LineWork) -> bool:
    owned, by = rank.owned, rank.owned.by_call
    inside = np.array([*(bool(path) for path in owned.modules), False], bool)
    return bool(inside[by.module[among(by.stack, work.stacks)]].all())


# Many calls where one would do.


def _one_by_one(account: Account) -> Iterator[Match]:
    """Yield lines that change many tensors one by one, with their host time gone as the counterfactual."""

    def is_loop(rank: RankLines, work: LineWork) -> bool:
        if not work.apart or work.modules or work.collectives or work.to_host:
            return False
        turns, every = 2 * _LOOP * max(len(rank.owned.rank.steps), 1), sum(work.top_calls.values())
        in_turn = sum(n for n in work.top_calls.values() if n >= turns)
        return work.in_place >= turns and (work.in_place >= 0.3 * work.kernels or in_turn >= 0.9 * every)

    if has_device(account):
        for line in lines_on_all(account, is_loop):
            known = ranks_with(account, line)
            calls = np.mean([one.lines[line].in_place / max(len(one.owned.rank.steps), 1) for one in known])
            found = line_match(account, line, without_lines(account, [line], device=False), what_if=())
            yield replace(found, facts={**found.facts, "calls": f"{calls:.0f}"})


def _repeated(account: Account) -> Iterator[Match]:
    """Yield lines of forward that call the same module over and over, or the same operators for each element of a
    comprehension. What one element does not wait for can be done for all at once.
    """
    if not has_device(account) or account.strategy.has("pp"):
        return
    for line in lines_on_all(account, lambda rank, work: _module_calls(rank, work) >= _LOOP):
        known = ranks_with(account, line)
        parts = [
            replace(part, work=part.work & ~view.costs.is_matmul) if len(part.work) else part
            for part, view in zip(parts_of_lines(account, [line]), account.ranks, strict=True)
        ]
        what = next(iter(known[0].lines[line].modules))
        times = max(_module_calls(one, one.lines[line]) for one in known)
        yield _repeated_match(account, line, without_parts(parts), what, times, where=(at(line, what),))
    source = account.run.source

    def is_used(rank: RankLines, work: LineWork) -> bool:
        return not work.apart or feeds_training(source, rank, work.line) is True

    for line in lines_on_all(
        account,
        lambda rank, work: is_used(rank, work) and _elements(source.line(*work.line), rank, work)[0] >= _ELEMENTS,
    ):
        each = [_elements(source.line(*line), one, one.lines[line]) for one in ranks_with(account, line)]
        times, what = max(each)
        parts = [
            replace(part, work=part.work & _gone_at_once(known)) if known is not None and len(part.work) else part
            for part, known in zip(parts_of_lines(account, [line]), account.line_work, strict=True)
        ]
        change = without_parts(parts, factor=1 / times, collectives=False, waits=False)
        yield _repeated_match(account, line, change, what, times, sureness=0.7, doubt=0.5)


def _gone_at_once(known: RankLines) -> Mask:
    """Return the device work that one call for all elements has once: what is short, and the gradients of parts of a
    tensor, each of which fills and adds a whole one.
    """
    rank, calls = known.owned.rank, known.owned.calls
    of_part = by_string(rank.trace, calls.name, lambda name: bool(_OF_PART.search(name))).astype(bool)
    inside = np.append(calls.nearest(of_part) >= 0, False)
    return (rank.work.end_ns - rank.work.start_ns < SHORT_NS) | inside[calls.at_rows(rank.work.op_row)]


def _repeated_match(account: Account, line: Line, change: Change, what: str, times: float, **more: object) -> Match:
    found = line_match(account, line, change, what_if=(), **more)
    evidence = (*found.evidence, Evidence("calls of the same {per_step}", round(times), "calls", place_of(line)))
    return replace(found, facts={**found.facts, "what": what, "times": f"{times:.0f}"}, evidence=evidence)


def _module_calls(rank: RankLines, work: LineWork) -> float:
    """Return how often a line calls its one module per step in one forward pass, with a backward for each; else 0."""
    if len(work.modules) != 1 or not work.has_backward or work.optimizes:
        return 0.0
    owned, steps = rank.owned, max(len(rank.owned.rank.steps), 1)
    calls, by = owned.calls, owned.by_call
    step = owned.rank.steps.of(calls.start_ns)
    inside = step >= 0
    first, last = (np.append(ns, 0)[step] for ns in (work.first_ns, work.last_ns))
    between = by.backward & inside & (calls.start_ns > first) & (calls.start_ns < last)
    if not (work.last_ns <= rank.backward_ns).all() or between.any():
        return 0.0
    module = owned.modules.index(next(iter(work.modules)))
    mine = np.isin(by.stack, work.stacks) & ~by.backward & (by.module == module) & inside
    _, count = np.unique(calls.name[mine], return_counts=True)
    often = count[count >= _LOOP * steps]
    return float(often.min()) / steps if 2 * len(often) > len(count) else 0.0


def _elements(text: str | None, rank: RankLines, work: LineWork) -> tuple[float, str]:
    """Return for how many elements a comprehension makes the same calls, and which operator takes longest; else 0."""
    if text is None or work.optimizes or work.collectives:
        return 0.0, ""
    if not code_text_has_comprehension(text):
        return 0.0, ""
    owned = rank.owned
    calls, by = owned.calls, owned.by_call
    is_range = owned.rank.kinds[calls.row] == EventKind.ANNOTATION
    mine = among(by.stack, work.stacks) & ~by.backward & ~is_range & (owned.rank.steps.of(calls.start_ns) >= 0)
    around = np.append(mine, False)[calls.parent]
    tops = mine & ~around
    if not tops.any():
        return 0.0, ""
    longest = int(np.argmax(np.bincount(calls.name[tops], weights=(calls.end_ns - calls.start_ns)[tops])))
    turn = mine[~around & ~is_range]  # in the order of calls, without what a call of the line calls itself
    executed = int((turn & ~np.append(False, turn[:-1])).sum())
    return float((calls.name[tops] == longest).sum()) / max(executed, 1), owned.rank.trace.strings[longest]


# Everything else that the loop does in every step and that is no pass of the model.


def _outside_training(account: Account, *, id_: str) -> Iterator[Match]:
    return (match for found, match in _outside_passes(account) if found == id_)


@once_per_record
def _outside_passes(account: Account) -> list[tuple[str, Match]]:
    """Return the lines, or loops of lines, that most ranks run outside the passes, each with the id of its finding."""
    known = [one for one in account.line_work if one is not None]
    if account.step is None or not known:
        return []
    found: dict[Line, list[tuple[Line, ...]]] = defaultdict(list)
    for one in known:
        steady = [line for line in loop_lines(one).values() if line.longer_ns > 0]
        passes = [line for line, work in one.lines.items() if is_pass(one, work)]
        for group in loops(steady, passes):
            if sum(line.longer_ns for line in group) >= NEGLIGIBLE * account.step.step_ns:
                largest = max(group, key=lambda line: line.longer_ns)
                is_all = largest.longer_ns >= NEARLY_ALL * sum(line.longer_ns for line in group)
                found[largest.line].append((largest.line,) if is_all else tuple(line.line for line in group))
    common = (groups[0] for groups in found.values() if 2 * len(groups) > len(known))
    return [match for lines in common if (match := _outside_match(account, lines)) is not None]


def _outside_match(account: Account, lines: tuple[Line, ...]) -> tuple[str, Match] | None:
    ranks = [known for known in account.line_work if known is not None and any(line in known.lines for line in lines)]
    each = [[loop_lines(one)[line] for line in lines if line in loop_lines(one)] for one in ranks]
    # what takes far longer in few steps than in the median one is the machine's doing
    took = [sum(min(line.mean_ns, 2.0 * line.typical_ns) for line in mine) for mine in each]
    on_device = [sum(line.device_ns for line in mine) for mine in each]
    first = next(mine[0] for mine in each if mine)
    works = [one.lines[line] for one in ranks for line in lines if line in one.lines]
    places = _places(each, lines)
    named = (places[0][0],) if len(lines) == 1 else lines
    (file, start), (_, stop) = named[0], named[-1]
    place = f"{file}:{start}" if start == stop else f"{file}:{start}-{stop}"
    host, device = float(np.mean(took)), float(np.mean(on_device))
    costs = [one.inclusive for one in account.code.lines if (one.file, one.line) in named] if account.code else []
    shown = min(host, sum(cost.host_ns + cost.blocked_ns for cost in costs))  # of the unprofiled step
    called = _called(ranks, named)
    below = f", mostly in {called[0][0]}" if called and called[0][1] >= MOSTLY * host else ""
    on_both = f" of the host and {ms_text(device)} ms of the device" if device >= 0.01 * host else " of host time"
    feeds = {feeds_training(account.run.source, one, line) for one in ranks for line in lines if line in one.lines}
    changes, may_train = (
        any(getattr(line, what) for mine in each for line in mine) for what in ("changes", "may_train")
    )
    acts = any(follows_a_pass(one, line) for one, mine in zip(ranks, each, strict=True) for line in mine)
    acts |= any(uses_results(account.run.source, one, line) for one in ranks for line in lines)
    of_model = any(work.has_backward or work.modules for work in works)
    prepares = (first.before_forward or any(work.to_device for work in works)) and not acts and not of_model
    unknown = None in feeds and (may_train or prepares or acts)
    needed = not first.of_gradients and (True in feeds or changes or unknown)
    critical = critical_ns(account, named) if needed else 0.0
    if account.step is None or (needed and critical < NOTABLE * account.step.step_ns):
        return None
    steps = sum(max(len(one.owned.rank.steps), 1) for one in ranks)
    sorts = {
        "hook": first.of_gradients,
        "unused": not needed and feeds == {False},
        "unknown": not needed,
        "elements": not of_model and sum(work.to_host for work in works) >= _LOOP * steps,
        "gradients": any(work.has_backward for work in works),
        "modules": of_model,
        "input": prepares,
        "results": acts,
        "changes": changes,
        "between": True,
    }
    sort = next(sort for sort, holds in sorts.items() if holds)
    id_, title, what, why, how = _OUTSIDE[sort]
    facts = {"place": place, "what": what, "took": f"{ms_text(critical)} of {ms_text(account.step.step_ns)} ms"}
    alone = (
        without_lines(account, named, device=False) if prepares and not any(work.kernels for work in works) else None
    )
    return id_, Match(
        without_lines(account, named),
        facts=facts,
        limit_ns=None if has_device(account) else max(map(sum, zip(took, on_device, strict=True))),
        claim=place,
        cost_ns=max(host, device, critical),
        evidence=(
            *((evidence_ms("on the critical path {per_step}", critical, place),) if needed else ()),
            *((evidence_ms("host time of the line {per_step}", shown, place),) if shown else ()),
            *((evidence_ms("device time of the line {per_step}", device, place),) if device >= 0.01 * host else ()),
            *(evidence_ms("of the host time", ns * shown / host, name) for name, ns in called if ns >= 0.1 * host),
        ),
        title=title or f"{what[0].upper()}{what[1:]} in {{every_step}}: {{took}} ({{place}})",
        cause=f"{{place}} takes {ms_text(shown)} ms{on_both} {{per_step}}{below}; {why}",
        remedy=f"{how} Assumes the step without it{_BOUNDS[id_]}.",
        sureness=0.6 if sort == "hook" else 0.9 if feeds == {False} else 0.7,
        where=tuple(at(line, share=share) for line, share in places[:MAX_PLACES]),
        what_if=("--without", place),
        on_device=device > host,
        at_most=id_ == "host-work",
        surely=alone,
    )


_UNUSED = "it is no part of forward, backward, optimizer or loader, and no gradient goes through it"
_NO_PART = "Non-training work in {every_step} ({place})"
_BOUNDS = {
    "host-stall": "; running it every N steps keeps 1/N of the cost",
    "host-work": ": at most, as training may need it",
    "host-device-sync": "; all in one call takes next to nothing",
}
# by sort of line: the finding's id, its title (where empty, what it is with its time), what it is, why, how to make it cheaper
_OUTSIDE = {
    "hook": (
        "host-stall", "Gradient hook in every backward ({place})", "work on gradients",
        "backward calls it, as a hook; it changed nothing in place",
        "Where it only reads gradients, run it every N steps or delete it. Where it returns another gradient, do that once "
        "after backward for all of them (torch.nn.utils.clip_grad_norm_).",
    ),
    "unused": (
        "host-stall", _NO_PART, "work outside training", f"{_UNUSED}; nothing it computes flows into training",
        "Run it every N steps, or delete it: nothing it computes flows into training.",
    ),
    "unknown": (
        "host-stall", _NO_PART, "work outside training", _UNUSED,
        "Run it every N steps, in another thread, or delete it: the recording cannot show whether training needs it.",
    ),
    "elements": (
        "host-device-sync", "Elements read one by one on the host ({place})", "reading single elements",
        "the host waits for each of them and computes with it",
        "Read all at once (tolist(), cpu()) before the loop, or compute with whole tensors on the device.",
    ),
    "gradients": (
        "host-work", "", "work outside the model with gradients", "autograd runs back through it",
        "Do in one call what it does for each element; compute less of it, or in 16 bits.",
    ),
    "modules": (
        "host-work", "", "running modules without gradients", "it runs modules through which no gradient goes",
        "Run them for several samples at once, less often, or in 16 bits.",
    ),
    "input": (
        "host-work", "", "preparing the model's input", "it runs before forward, outside autograd",
        "Move it into the dataset, where loader workers run it; a thread one batch ahead works too. Do once what is the same "
        "in every step.",
    ),
    "results": (
        "host-work", "", "work after a pass without gradients",
        "it follows a pass of the model without gradients and may depend on its output",
        "Do several at once (environments, samples), in parallel processes, or every N steps.",
    ),
    "changes": (
        "host-work", "", "changing tensors", "it changes tensors in place, such as averaged weights or statistics",
        "Run it every N steps, or change all tensors in one call (torch._foreach_lerp_ and the like).",
    ),
    "between": (
        "host-work", "", "work between the passes",
        "it is no part of forward, backward, optimizer or loader, and training may use what it makes",
        "Do in one call what it does for each element, do it on the device, less often, or in another thread.",
    ),
}  # fmt: skip


def _places(each: Sequence[Sequence[LoopLine]], lines: Sequence[Line]) -> list[tuple[Line, float]]:
    """Return the lines of a loop, the largest first; of a single line what it calls: the innermost line that holds
    nearly all of its time, the line itself, and others that hold much of it.
    """
    if len(lines) > 1:
        took = {line: sum(one.typical_ns for mine in each for one in mine if one.line == line) for line in lines}
        total = max(sum(took.values()), 1.0)
        return sorted(((line, ns / total) for line, ns in took.items()), key=lambda item: -item[1])
    inside = next(mine[0].inside for mine in each if mine)
    whole = [line for line, share in inside.items() if share >= NEARLY_ALL]
    others = sorted((line for line in inside if line not in whole), key=lambda line: -inside[line])
    named = [(line, inside[line]) for line in whole[-1:]] + [(lines[0], 1.0)]
    return named + [(line, inside[line]) for line in others if inside[line] >= 0.25]


def _called(ranks: Sequence[RankLines], lines: Sequence[Line]) -> list[tuple[str, float]]:
    """Return the functions and operators in which lines spend most of their time, per step."""
    found: dict[str, float] = defaultdict(float)
    for known in ranks:
        owned, holds = known.owned, known.holding_any(lines)
        share, steps = 1 / max(len(owned.rank.steps), 1) / len(ranks), owned.rank.steps
        host, calls = owned.host, owned.calls
        mine = holds[host.owner.stack] & host.is_python & host.runs & (steps.of(host.start_ns) >= 0)
        took = np.bincount(host.owner.stack[mine], (host.end_ns - host.start_ns)[mine], minlength=len(owned.stacks))
        for stack in np.flatnonzero(took).tolist():
            frame = owned.frames[owned.stacks.innermost[stack]]
            if (frame.file, frame.line) not in lines:
                name = f"{frame.function} ({frame.file.rsplit('/', 1)[-1]}:{frame.line})"
                found[name] += float(took[stack]) * share
        tops = np.flatnonzero(holds[owned.by_call.stack] & (calls.parent < 0) & (steps.of(calls.start_ns) >= 0))
        for row in tops.tolist():
            found[owned.rank.trace.strings[calls.name[row]]] += float(calls.end_ns[row] - calls.start_ns[row]) * share
    largest = sorted(found.items(), key=lambda item: -item[1])[:3]
    return [(name, ns) for name, ns in largest if ns >= 0.1 * largest[0][1]]


_WITHOUT = "Assumes the step without this line."

# fmt: off
KINDS = (
    Kind("redundant-communication", _without_each(_lines_sending_again), "Gradients sent a second time ({place})",
         "the training wrapper has synchronised the gradients when backward ends, and {place} does so once more",
         f"Delete it: DistributedDataParallel and FSDP have averaged the gradients when backward() returns. {_WITHOUT}",
         scope=Scope.SEVERAL_RANKS, training_only=True, subject="communication of the loop ({place})"),
    Kind("redundant-communication", _without_each(_extra_lines),
         "Extra collectives in {every_step} ({place})",
         "{place} asks for {collectives} collectives {per_step} in addition to those that synchronise gradients",
         "Weights that start equal stay equal where gradients are synchronised: send them once. Reduce metrics "
         f"every N steps, in one call. {_WITHOUT}",
         scope=Scope.SEVERAL_RANKS, training_only=True, subject="communication of the loop ({place})"),
    Kind("recomputation", _second_forward, "Second forward pass without backward ({place})",
         "{place} runs {modules} modules that are trained in the same {step}; nothing goes back through its result, and no "
         "loss has it: a metric or a log",
         "Take the metric from the output of the training pass where it is of the same batch, or compute it every N steps. "
         f"{_WITHOUT}",
         training_only=True, subject="a forward pass without backward ({place})"),
    Kind("host-device-sync", _without_each(_statistics), "Results copied to the host in {every_step} ({place})",
         "the host waits in {place} for {copies} copies {per_step} and computes with them; no gradient, parameter or input of "
         "the device comes of it",
         f"Copy every N steps, or accumulate on the device and copy one number later. {_WITHOUT}",
         scope=Scope.DEVICE, training_only=True, subject="bringing results to the host ({place})"),
    Kind("host-to-device-copy", _removed(_created_on_host), "Tensors created on the host in {every_step} ({place})",
         "{place} makes tensors on the host inside forward and copies them to the device",
         f"Make them once, on the device (register_buffer, or device=x.device), and reuse them. {_WITHOUT}",
         scope=Scope.DEVICE, training_only=True, sureness=0.7, subject="copying to the device ({place})"),
    Kind("launch-overhead", _one_by_one, "Tensors updated one by one ({place})",
         "{place} changes {calls} tensors {per_step} in a Python loop, one after the other",
         "Change all tensors at once (torch._foreach_mul_, torch._foreach_add_, torch._foreach_lerp_ and the like; a function "
         "that takes a list takes all of them), or every N steps. Assumes the step without this line's host time.",
         scope=Scope.DEVICE, training_only=True, subject="changing tensors one by one ({place})"),
    Kind("launch-overhead", _repeated, "{what} called {times} times {per_step} ({place})",
         "{place} runs {what} {times} times in a Python loop: many small launches, forward and backward",
         "Do it in one call where there is one: nn.LSTM for nn.LSTMCell, a scan, a batched product or attention, one table with "
         "offsets for several embeddings, torch.func.vmap; or capture the loop as a graph. Assumes this line's "
         "work in one call: its host time once, and of its kernels the matrix products or the longest.",
         scope=Scope.DEVICE, training_only=True, doubt=0.3, subject="calling one by one ({place})"),
    Kind("host-device-sync", partial(_outside_training, id_="host-device-sync"), "Elements read one by one ({place})",
         "",
         "",
         scope=Scope.DEVICE, training_only=True, sureness=0.7, doubt=0.3, subject="{what} ({place})"),
    Kind("host-stall", partial(_outside_training, id_="host-stall"), "Non-training work in {every_step} ({place})",
         "",
         "",
         scope=Scope.HOST, needs=(Need.LINES,), training_only=True, sureness=0.7, subject="{what} ({place})"),
    Kind("host-work", partial(_outside_training, id_="host-work"), "Work between the passes in {every_step} ({place})",
         "",
         "",
         scope=Scope.HOST, needs=(Need.LINES,), training_only=True, sureness=0.7, subject="{what} ({place})"),
)
# fmt: on
