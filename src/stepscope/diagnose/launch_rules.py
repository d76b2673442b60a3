"""`launch-overhead`: the host launches kernels more slowly than the device runs them."""

import re
from dataclasses import replace

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.kernel_costs import abilities
from stepscope.analyze.kernels import SHORT_NS
from stepscope.analyze.owner_lines import LineWork, RankLines
from stepscope.analyze.phases import trains
from stepscope.analyze.replay.changes import Change, as_graph
from stepscope.analyze.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rule_measures import (
    at,
    host_ms,
    items_per_step,
    lines_on_all,
    parts_of_lines,
    ranks_with,
    without_lines,
    without_parts,
)
from stepscope.run.source_text import SourceText, code_of
from stepscope.stats.distinct import among


def launch_overhead(account: Account) -> list[Candidate]:
    """Return the host's own time as a cost, where there is a device to keep busy."""
    if account.replay is None or account.step is None or not any(r.has_device for r in account.run.ranks):
        return []
    gap = account.step.ns("launch_gap")
    return [
        Candidate(
            id="launch-overhead",
            title="The device waits for the host to launch",
            cause="python and operator dispatch take longer than the kernels they launch",
            remedy=_remedy(account),
            change=as_graph,
            cost_ns=gap,
            evidence=(
                Evidence("idle device while the host prepares launches, per step", host_ms(gap), "ms"),
                Evidence("device operations per step", round(items_per_step(account)), "launches"),
            ),
            doubt=0.2,
        )
    ]


def _remedy(account: Account) -> str:
    more = (
        "larger batches and fused optimizers help too" if trains(account.strategy.passes) else "larger batches help too"
    )
    saving = "The saving is of the step replayed as one graph."
    if abilities(account.run.ranks, account.chip.chip).graphs is False:
        return f"Launch the step as a graph with what the device's vendor has for it; {more}. {saving}"
    return (
        "Launch the step as a graph: torch.compile(model, mode='reduce-overhead'), or torch.cuda.graphs.make_graphed_callables; "
        f"{more}. {saving}"
    )


# `launch-overhead` by line: the same calls for one element after the other in a comprehension.
#
#     each = [attention(q[:, h], k[:, h], v[:, h]) for h in range(8)]
#
# What a comprehension does for one element does not wait for what it did for another, as a loop over layers does: one
# call can do it for all of them. Then the host prepares one call, and kernels that are too short to fill the device
# take
# the time of one. Longer ones stay as they are.

_TOKEN = re.compile(r"\w+|[\[\](){}]")


def comprehensions(account: Account) -> list[Candidate]:
    """Return lines of forward whose comprehension makes the same calls for each element."""
    lines = lines_on_all(account, lambda known, work: _is_repeated(account.run.source, known, work))
    return [_candidate(account, line) for line in lines]


def is_comprehension(text: str) -> bool:
    """Return whether a line of source holds a comprehension as a whole.

    >>> [is_comprehension(s) for s in ("y = [f(x) for x in xs]", "for x in f(xs):", "g('[for x in')", "[f(x) for x")]
    [True, False, False, False]
    """
    depth, inside = 0, 0
    for token in _TOKEN.findall(code_of(text)):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if 0 < inside > depth:
                return True
        elif token == "for" and depth > 0:
            inside = depth
    return False


def _is_repeated(source: SourceText, known: RankLines, work: LineWork) -> bool:
    if work.apart or work.optimizes or work.collectives or work.to_host:
        return False
    text = source.line(*work.line)
    # elements of one comprehension
    return text is not None and is_comprehension(text) and _times(known, work)[0] >= 4


def _times(known: RankLines, work: LineWork) -> tuple[float, str]:
    owned = known.owned
    calls, by = owned.calls, owned.by_call
    mine = among(by.stack, work.stacks) & ~by.backward & (owned.rank.steps.of(calls.start_ns) >= 0)
    around = np.append(mine, False)[calls.parent]
    tops = mine & ~around
    if not tops.any():
        return 0.0, ""
    took = np.bincount(calls.name[tops], weights=(calls.end_ns - calls.start_ns)[tops])
    longest = int(np.argmax(took))
    turn = mine[~around]  # in the order of calls, without what a call of the line calls itself
    executed = int((turn & ~np.append(False, turn[:-1])).sum())
    return float((calls.name[tops] == longest).sum()) / max(executed, 1), owned.rank.trace.strings[longest]


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    times, operator = max(_times(known, known.lines[line]) for known in ranks_with(account, line))
    return Candidate(
        id="launch-overhead",
        title=f"{place} calls {operator} {times:.0f} times where one call would do",
        cause=f"{place} does the same for each of {times:.0f} elements in a comprehension, which do not wait for each other: "
        "many small launches, forward and backward",
        remedy="Do it for all elements in one call, where their shapes allow it: a batched product or attention, one table "
        "with offsets for several embeddings, torch.func.vmap. The saving is of one element's host time, and of kernels "
        f"below {SHORT_NS // 1000} us as one.",
        change=_batched(account, line, times),
        evidence=(Evidence("elements", round(times), "calls", place),),
        where=(at(line),),
        what_if=(),
        doubt=0.5,
        sureness=0.7,
        subject=f"calling one by one ({place})",
    )


def _batched(account: Account, line: Line, times: float) -> Change:
    parts = [
        replace(part, work=part.work & (rank.work.end_ns - rank.work.start_ns < SHORT_NS)) if len(part.work) else part
        for part, rank in zip(parts_of_lines(account, [line]), account.run.ranks, strict=True)
    ]
    return without_parts(parts, factor=1 / times, collectives=False)


# `launch-overhead` by line: one small module called over and over in a Python loop, as recurrent cells are.

# calls of the same module from the same line in one forward pass
_REPEATED_MODULE_MIN_TIMES = 16


def repeated_module(account: Account) -> list[Candidate]:
    """Return lines that call one module many times in one forward pass, each call with a backward of its own, or the
    same for each element of a comprehension.
    """
    if not any(rank.has_device for rank in account.run.ranks) or account.strategy.has("pp"):
        return []
    found = [_repeated_module_candidate(account, line) for line in lines_on_all(account, _repeated_module_is_repeated)]
    if any(known is not None for known in account.line_work):
        found += comprehensions(account)
    return found


def _repeated_module_is_repeated(rank: RankLines, work: LineWork) -> bool:
    return _repeated_module_times(rank, work) >= _REPEATED_MODULE_MIN_TIMES


def _repeated_module_times(rank: RankLines, work: LineWork) -> float:
    if len(work.modules) != 1 or not work.has_backward or work.optimizes:
        return 0.0
    if not (work.last_ns <= rank.backward_ns).all() or _backward_between(rank, work):
        return 0.0
    owned = rank.owned
    calls, by = owned.calls, owned.by_call
    module = owned.modules.index(next(iter(work.modules)))
    mine = np.isin(by.stack, work.stacks) & ~by.backward & (by.module == module)
    mine &= owned.rank.steps.of(calls.start_ns) >= 0
    _, count = np.unique(calls.name[mine], return_counts=True)
    often = count[count >= _REPEATED_MODULE_MIN_TIMES * max(len(owned.rank.steps), 1)]
    if 2 * len(often) <= len(count):
        return 0.0
    return float(often.min()) / max(len(owned.rank.steps), 1)


def _backward_between(rank: RankLines, work: LineWork) -> bool:
    owned = rank.owned
    by, start = owned.by_call, owned.calls.start_ns
    step = owned.rank.steps.of(start)
    for s, (first, last) in enumerate(zip(work.first_ns.tolist(), work.last_ns.tolist(), strict=True)):
        if bool((by.backward & (step == s) & (start > first) & (start < last)).any()):
            return True
    return False


def _repeated_module_candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    known = ranks_with(account, line)
    times = max(_repeated_module_times(one, one.lines[line]) for one in known)
    module = next(iter(known[0].lines[line].modules))
    parts = [
        replace(part, work=part.work & ~view.costs.is_matmul) if len(part.work) else part
        for part, view in zip(parts_of_lines(account, [line]), account.ranks, strict=True)
    ]
    return Candidate(
        id="launch-overhead",
        title=f"{place} calls {module} {times:.0f} times per step",
        cause=f"{place} runs {module} step by step in a Python loop: many small launches, forward and backward, where "
        "fused forms take the whole sequence",
        remedy="Give the whole sequence to one call where there is one (nn.LSTM for nn.LSTMCell, a scan, a batched "
        "product), or capture the loop as a graph. The saving is of this line's matrix products alone: its other "
        "kernels fused into them, its host time gone.",
        change=without_parts(parts),
        evidence=(Evidence("calls of the same module per step", round(times), "calls", place),),
        where=(at(line, module),),
        what_if=(),
        doubt=0.3,
    )


# `launch-overhead` by line: tensors changed one by one in a Python loop, where one call changes them all.

# of the line's operators that do something change a tensor in place
_MIN_SHARE = 0.3
# operators with a torch._foreach_ form
_FOREACH = frozenset(
    f"aten::{name}_"
    for name in (
        "add", "sub", "mul", "div", "lerp", "copy", "zero", "addcmul", "addcdiv", "sqrt", "neg", "abs", "clamp",
        "clamp_min", "clamp_max", "pow", "sign", "exp", "log", "reciprocal", "maximum", "minimum",
    )
)  # fmt: skip
_LISTS = "aten::_foreach_"
# operators that only give a tensor another name or shape: the host's work, none of the device's
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "detach", "alias", "view", "view_as", "reshape", "flatten", "expand", "expand_as", "t", "transpose", "permute",
        "select", "slice", "narrow", "unbind", "split", "chunk", "squeeze", "unsqueeze", "as_strided", "diagonal",
    )
)  # fmt: skip


def parameter_loop(account: Account) -> list[Candidate]:
    """Return lines that change many tensors one by one."""
    if not any(rank.has_device for rank in account.run.ranks):
        return []
    return [_parameter_loop_candidate(account, line) for line in lines_on_all(account, _is_loop)]


def _is_loop(rank: RankLines, work: LineWork) -> bool:
    if not work.apart or work.modules or work.collectives or work.to_host:
        return False
    # in place per step and line: fewer are no loop over parameters
    least = 32 * max(len(rank.owned.rank.steps), 1)
    does = sum(work.top_calls.values()) - _views(work)
    repeated = sum(n for name, n in work.top_calls.items() if n >= least and name not in _VIEWS)
    looped = _looped(work)
    # of the same are called as often as a loop has turns: then it is one, though it computes more than it changes
    return looped >= least and (looped >= _MIN_SHARE * does or repeated >= 0.9 * does)


def _looped(work: LineWork) -> int:
    return sum(n for name, n in work.top_calls.items() if _changes(name))


def _changes(operator: str) -> bool:
    return operator in _FOREACH or (operator.startswith(_LISTS) and operator.endswith("_"))


def _views(work: LineWork) -> int:
    return sum(n for name, n in work.top_calls.items() if name in _VIEWS)


def _parameter_loop_candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    calls, views, steps, names = 0, 0, 0, set()
    for known in ranks_with(account, line):
        calls += _looped(known.lines[line])
        views += _views(known.lines[line])
        steps += max(len(known.owned.rank.steps), 1)
        names |= {name for name in known.lines[line].top_calls if _changes(name)}
    looks, once = "", ""
    # times as many views as changes: more than a loop over tensors takes
    if views >= 4 * calls:
        looks = f", and takes {views / steps:,.0f} views of tensors meanwhile"
        once = " Take what the loop looks up (a state_dict(), a view) once, before it."
    forms = ", ".join(
        f"torch._foreach_{name}"
        for name in sorted({name.removeprefix(_LISTS).removeprefix("aten::") for name in names})
    )
    return Candidate(
        id="launch-overhead",
        title=f"{place} changes tensors one by one",
        cause=f"{place} launches {calls / steps:.0f} operators per step in a Python loop, each on one tensor{looks}",
        remedy=f"Change all tensors at once ({forms}; a function that takes a list takes all of them), or every N steps.{once} The saving is of the step without this line's "
        "host time.",
        change=without_lines(account, [line], device=False),
        evidence=(
            Evidence("operators in place per step", round(calls / steps), "calls", place),
            *((Evidence("views per step", round(views / steps), "calls", place),) if looks else ()),
        ),
        where=(at(line),),
        what_if=(),
        subject=f"changing tensors one by one ({place})",
    )
