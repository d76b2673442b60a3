"""Gates: conditions on the numbers of a report that must not hold, as `--fail-on` takes them.

    data_loading_pct>30                     a check, by its id
    step_ms>120                             the step: unprofiled where known, else profiled
    mfu<0.3                                 a number that only one section of the report has
    step.budget.wait.pct>10                 any number by its dotted name; items of lists by what names them,
    findings.straggler.saving_pct>5         (id, part, op, loss, cause, rank, name); 0 for a finding there is not
    stragglers.count>0                      how many items a list has
    ranks.*.idle_ms>50                      any item of the list
    step_ms>5%                              a change in percent, where two runs are compared

A gate on a number that is not known does not hold: a check that nothing can fail is none.
"""

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepscope.diagnose.finding import FINDING_IDS
from stepscope.errors import UsageError
from stepscope.records import dataclass

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_GATE = re.compile(
    r"^\s*(?P<name>[\w.*:/-]+?)\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<limit>[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?)\s*(?P<pct>%?)\s*$"
)
_NAMED_BY = ("id", "part", "op", "loss", "cause", "rank", "name")
# where a name without a dot is looked up, after the checks
_SECTIONS = ("step", "efficiency", "run")


@dataclass(frozen=True)
class Gate:
    """One condition that fails a run."""

    name: str
    op: str
    limit: float
    #: whether the limit is a change in percent of a first run
    relative: bool

    def __str__(self) -> str:
        return f"{self.name}{self.op}{self.limit:g}{'%' if self.relative else ''}"

    def met(self, value: float) -> bool:
        """Return whether the condition that fails a run is true of this value."""
        return _COMPARE[self.op](value, self.limit)


@dataclass(frozen=True)
class GateResult:
    """A gate and its value in the report."""

    gate: Gate
    holds: bool
    #: the value that decided; the first that met the condition, where a pattern matches several
    value: float | None
    said: str


def parse_gate(text: str) -> Gate:
    """Parse a gate such as `data_loading_pct>30`."""
    found = _GATE.match(text)
    if not found:
        raise UsageError(
            f"--fail-on {text!r} is no condition: write NAME OP NUMBER such as 'data_loading_pct>30', with one of "
            f"{' '.join(_COMPARE)}"
        )
    return Gate(found["name"], found["op"], float(found["limit"]), bool(found["pct"]))


def judge(gates: Sequence[Gate], report: Mapping[str, Any]) -> list[GateResult]:
    """Return the result of each gate for one report."""
    for gate in gates:
        if gate.relative:
            raise UsageError(
                f"--fail-on {gate}: a change in % needs two runs (stepscope compare A B); leave out the % for a number"
            )
    return [_gate_result(gate, numbers(report, gate.name), _why_unknown(report, gate.name)) for gate in gates]


def numbers(report: Mapping[str, Any], name: str) -> list[float | None]:
    """Return the numbers of a name: one, or several for a pattern with `*`; raise `UsageError` if there is none."""
    found = _short(report, name) if "." not in name else _walked(report, name.split("."))
    if found is None:
        raise UsageError(f"--fail-on: unknown metric {name!r}; {_near(report, name)}")
    wrong = [v for v in found if v is not None and not _is_number(v)]
    if wrong:
        raise UsageError(f"--fail-on: {name!r} is {_kind(wrong[0])}, not a number")
    return found


def dotted_numbers(value: Any, prefix: str = "") -> dict[str, float | None]:
    """Return every number by its dotted name, None for what is not known; items of lists by what names them.

    Items of the same name are identified by their group, else by their position.

    >>> dotted_numbers({"step": {"budget": [{"part": "wait", "pct": 3.5}], "note": "x"}})
    {'step.budget.wait.pct': 3.5}
    """
    if value is None or _is_number(value):
        return {prefix: value}
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = _items_by_name(value)
    else:
        return {}
    return {n: v for key, item in parts for n, v in dotted_numbers(item, f"{prefix}.{key}".strip(".")).items()}


def _items_by_name(items: list[Any]) -> list[tuple[str, Any]]:
    out: dict[str, Any] = {}
    for place, item in enumerate(items):
        key = next((k for k in _NAMED_BY if k in item), None) if isinstance(item, Mapping) else None
        if key is not None:
            name = str(item[key])
            name = f"{name}:{item.get('group', place)}" if name in out else name
            out[name] = {k: v for k, v in item.items() if k != key}
    return list(out.items())


def _gate_result(gate: Gate, values: list[float | None], why_unknown: str) -> GateResult:
    unknown = [v for v in values if v is None]
    met = [v for v in values if v is not None and gate.met(v)]
    if met:
        return GateResult(gate, False, met[0], f"{gate.name} is {met[0]:g}")
    if unknown:
        return GateResult(gate, False, None, f"{gate.name} is unknown, so the gate fails: {why_unknown}")
    return GateResult(gate, True, values[0] if values else None, _fine(gate, values))


def _why_unknown(report: Mapping[str, Any], name: str) -> str:
    checks = _named(report.get("checks") or [], name.removeprefix("checks.").removesuffix(".value"))
    return next((c["reason"] for c in checks if c.get("reason")), "see the warnings of the report")


def _fine(gate: Gate, values: list[float | None]) -> str:
    return f"{gate.name} is {values[0]:g}" if len(values) == 1 else f"{gate.name}: none of {len(values)}"


def _short(report: Mapping[str, Any], name: str) -> list[Any] | None:
    step = report.get("step") or {}
    if name == "step_ms":
        return [step.get("unprofiled_ms") if step.get("unprofiled_ms") is not None else step.get("profiled_ms")]
    for check in _named(report.get("checks") or [], name):
        return [check["value"]]
    for ending, key in (("_pct", "pct"), ("_ms", "ms_per_step")):
        if name.endswith(ending):
            for part in _named(step.get("budget") or [], name.removesuffix(ending)):
                return [part[key]]
    return next(([report[s][name]] for s in _SECTIONS if name in (report.get(s) or {})), None)


def _walked(value: Any, path: Sequence[str], within: str = "") -> list[Any] | None:
    if not path:
        return [value["value"]] if isinstance(value, Mapping) and "value" in value else [value]
    head, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return _walked(value[head], rest, head) if head in value else None
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    if head == "count" and not rest:
        return [len(value)]
    items = value if head == "*" else _named(value, head)
    if not items:
        return [0.0] if head == "*" or _nothing_of_the_kind(within, head) else None
    found = [_walked(item, rest) for item in items]
    return None if None in found else [v for part in found for v in part or ()]


def _named(items: Sequence[Any], name: str) -> list[Any]:
    if any(isinstance(item, Mapping) for item in items):
        return [i for i in items if isinstance(i, Mapping) and any(str(i.get(key)) == name for key in _NAMED_BY)]
    return [items[int(name)]] if _is_place(name) and int(name) < len(items) else []


def _nothing_of_the_kind(within: str, name: str) -> bool:
    return (within == "findings" and name in FINDING_IDS) or (within == "stragglers" and _is_place(name))


def _near(report: Mapping[str, Any], name: str) -> str:
    known = [*_short_names(report), *(n for n, value in dotted_numbers(report).items() if value is not None)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"did you mean {' or '.join(near)}?" if near else f"available, for example: {', '.join(known[:6])}"


def _short_names(report: Mapping[str, Any]) -> list[str]:
    checks = [c["id"] for c in report.get("checks") or ()]
    return ["step_ms", *checks, *(k for s in _SECTIONS for k, v in (report.get(s) or {}).items() if _is_number(v))]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _kind(value: Any) -> str:
    return "a list" if isinstance(value, list) else "a group of numbers" if isinstance(value, Mapping) else "text"


def _is_place(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) < 16
