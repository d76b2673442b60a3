"""Which faults has nobody looked for? All clear is a claim: it holds only for rules that had what they need."""

from collections.abc import Iterable

from stepscope.analyze.account import Account
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.rules import BY_OWNER, GENERAL, SPECIFIC
from stepscope.diagnose.scope.needs import applies

_REPLAY = "steps that all ranks recorded and that launch work"
_TOLD_WITHOUT_REPLAY = ("small-batch", "memory-pressure", "profiler-overhead")


@dataclass(frozen=True)
class UnexaminedFault:
    """One fault that could be there unseen. The fields are those of the report's JSON."""

    rule: str
    """the id its finding would have"""
    needs: str
    """what the rule lacks, and how to get it"""


def not_examined(account: Account, findings: Iterable[Finding], *, replayed: bool) -> tuple[UnexaminedFault, ...]:
    """Return the faults that were not found and could not be ruled out, in the order of the rules.

    Where nothing could be `replayed`, no rule can tell what its fix saves.
    """
    found = {f.id for f in findings}
    needs: dict[str, list[str]] = {}
    for rule in (*SPECIFIC, *GENERAL, *(rule for rule in BY_OWNER if rule.needs)):
        lacks = rule.lacks(account)
        if not replayed and applies(account, rule.scope) and rule.finds[0] not in _TOLD_WITHOUT_REPLAY:
            lacks.append(_REPLAY)
        for id_ in rule.finds if lacks else ():
            needs.setdefault(id_, []).extend(lacks)
    return tuple(
        UnexaminedFault(id_, "; ".join(dict.fromkeys(lacks))) for id_, lacks in needs.items() if id_ not in found
    )


def by_need(rules: Iterable[UnexaminedFault]) -> dict[str, list[str]]:
    """Return the rules under what they lack, for one line each."""
    out: dict[str, list[str]] = {}
    for rule in rules:
        out.setdefault(rule.needs, []).append(rule.rule)
    return out
