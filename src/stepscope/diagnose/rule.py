"""A rule: what it finds, in which jobs, what it needs, and how much its fix can remove."""

from collections.abc import Callable
from dataclasses import replace

from stepscope.analyze.account import Account
from stepscope.analyze.step.phases import trains
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.scope.applied_fixes import made_already
from stepscope.diagnose.scope.needs import Need, Scope, applies, missing


@dataclass(frozen=True)
class Rule:
    """One fault, or two of a kind, seen in the account."""

    find: Callable[[Account], list[Candidate]]
    finds: tuple[str, ...]
    """ids of the findings it can make"""
    scope: Scope = Scope.ANY
    needs: tuple[Need, ...] = ()
    """without these its silence proves nothing"""
    limit: Callable[[Account], float | None] | None = None
    """the time per step that its fix claims to remove, where a candidate does not say so itself"""
    training_only: bool = False
    """its advice needs gradients and an optimizer: a serving job gets none of it"""

    def __call__(self, account: Account) -> list[Candidate]:
        """Return what the rule sees, without fixes that the run has made already."""
        if self.training_only and not trains(account.strategy.passes):
            return []
        found = [c for c in self.find(account) if made_already(account, c.id) is None]
        if self.limit is None or not found:
            return found
        most_ns, claim = self.limit(account), self.limit.__name__
        return [c if c.limit_ns is not None else replace(c, limit_ns=most_ns, claim=claim) for c in found]

    def lacks(self, account: Account) -> list[str]:
        """Return what the rule would need to say that the fault is not there; nothing where it has it all."""
        if not applies(account, self.scope) or (self.training_only and not trains(account.strategy.passes)):
            return []
        return [said for said in (missing(account, need) for need in self.needs) if said is not None]
