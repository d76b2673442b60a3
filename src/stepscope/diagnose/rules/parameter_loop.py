"""`launch-overhead` by line: tensors changed one by one in a Python loop, where one call changes them all."""

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, ranks_with, without_lines

_MIN_CALLS = 32
"""in place per step and line: fewer are no loop over parameters"""
_MIN_SHARE = 0.3
"""of the line's operators that do something change a tensor in place"""
_MOSTLY_REPEATED = 0.9
"""of the same are called as often as a loop has turns: then it is one, though it computes more than it changes"""
_MANY_VIEWS = 4
"""times as many views as changes: more than a loop over tensors takes"""
FOREACH = frozenset(
    f"aten::{name}_"
    for name in (
        "add", "sub", "mul", "div", "lerp", "copy", "zero", "addcmul", "addcdiv", "sqrt", "neg", "abs", "clamp",
        "clamp_min", "clamp_max", "pow", "sign", "exp", "log", "reciprocal", "maximum", "minimum",
    )
)  # fmt: skip
"""operators with a torch._foreach_ form"""
_LISTS = "aten::_foreach_"
_VIEWS = frozenset(
    f"aten::{name}"
    for name in (
        "detach", "alias", "view", "view_as", "reshape", "flatten", "expand", "expand_as", "t", "transpose", "permute",
        "select", "slice", "narrow", "unbind", "split", "chunk", "squeeze", "unsqueeze", "as_strided", "diagonal",
    )
)  # fmt: skip
"""operators that only give a tensor another name or shape: the host's work, none of the device's"""


def parameter_loop(account: Account) -> list[Candidate]:
    """Return lines that change many tensors one by one."""
    if not any(rank.has_device for rank in account.run.ranks):
        return []
    return [_candidate(account, line) for line in lines_on_all(account, _is_loop)]


def _is_loop(rank: RankLines, work: LineWork) -> bool:
    if not work.apart or work.modules or work.collectives or work.to_host:
        return False
    least = _MIN_CALLS * max(len(rank.owned.rank.steps), 1)
    does = sum(work.top_calls.values()) - _views(work)
    repeated = sum(n for name, n in work.top_calls.items() if n >= least and name not in _VIEWS)
    looped = _looped(work)
    return looped >= least and (looped >= _MIN_SHARE * does or repeated >= _MOSTLY_REPEATED * does)


def _looped(work: LineWork) -> int:
    return sum(n for name, n in work.top_calls.items() if _changes(name))


def _changes(operator: str) -> bool:
    """Return whether an operator changes a tensor in place, alone or in a list, which is short where calls are many."""
    return operator in FOREACH or (operator.startswith(_LISTS) and operator.endswith("_"))


def _views(work: LineWork) -> int:
    return sum(n for name, n in work.top_calls.items() if name in _VIEWS)


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    calls, views, steps, names = 0, 0, 0, set()
    for known in ranks_with(account, line):
        calls += _looped(known.lines[line])
        views += _views(known.lines[line])
        steps += max(len(known.owned.rank.steps), 1)
        names |= {name for name in known.lines[line].top_calls if _changes(name)}
    looks, once = "", ""
    if views >= _MANY_VIEWS * calls:
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
