"""What bounds the run, in one word and one reason?

    1. a finding is worth 10 % of the step alone     the category of the first finding, and what it costs
    2. none is                                       the largest category of the budget, where the replay agrees that
                                                     removing it helps; `balanced` and `memory-bound` are refinements
    3. neither tells                                 `unclear`, with the reason

Every rendering shows this one conclusion.
"""

from stepscope.analyze.account import Account
from stepscope.dataclass import dataclass
from stepscope.diagnose.conclusion.categories import (
    BALANCED,
    CATEGORY_OF_FINDING,
    MEMORY,
    NOUN_OF,
    UNCLEAR,
    category_of_finding,
    category_times_ns,
)
from stepscope.diagnose.conclusion.headline import cost_in_words
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.scope.applied_fixes import applied
from stepscope.run.device_name import CPU
from stepscope.run.quality import rank_ranges

WORTH_NAMING_PCT = 10.0
"""of the step: a fix that saves as much alone decides the verdict"""
_BALANCED = 1.2
_MIN_MEMORY_BOUND_SHARE = 0.5
_AGREES = 0.25
"""of a category's time has to go when it is taken out of the replay: else something else bounds the step"""
_WHY_UNKNOWN = {
    "queued": "work was queued and the device did not start it",
    "other_stream": "one stream waited for another",
    "profiler": "the profiler's own buffers",
    "unknown": "the device idled and the trace does not say why",
}


@dataclass(frozen=True)
class Conclusion:
    """What bounds the run."""

    verdict: str
    """one of the contract's words"""
    reason: str
    first: Finding | None
    """the finding that decided it; None where the budget did"""

    @property
    def headline(self) -> str:
        """Return verdict and reason in one line."""
        return f"{self.verdict}: {self.reason}"


def conclude(account: Account, diagnosis: Diagnosis) -> Conclusion:
    """Return the verdict with its reason."""
    first = next(iter(diagnosis.worth), None)
    if first is not None and first.saving_pct >= WORTH_NAMING_PCT:
        category = category_of_finding(account, first)
        if category is not None:
            return Conclusion(_refined(account, category), cost_in_words(first), first)
    return _by_budget(account, first)


def _by_budget(account: Account, first: Finding | None) -> Conclusion:
    step = account.step
    if step is None or not step.step_ns:
        return Conclusion(UNCLEAR, "no step was recorded", None)
    unseen = [r.rank for r in account.run.ranks if not r.has_device and r.device_name != CPU]
    if unseen:
        return Conclusion(UNCLEAR, f"nothing that the device of rank {rank_ranges(unseen)} did is in the trace", None)
    times = category_times_ns(account)
    largest = max(times, key=lambda name: times[name])
    share = f"{NOUN_OF[largest]} takes {100 * times[largest] / step.step_ns:.0f} % of the {account.whole}"
    best = "" if first is None else f"; no single fix saves {WORTH_NAMING_PCT:.0f} %"
    if largest == UNCLEAR:
        return Conclusion(UNCLEAR, f"{share}{_why_unknown(account)}", None)
    doubt = _doubt(account, largest, times[largest])
    if doubt is not None:
        return Conclusion(UNCLEAR, f"{share}, but {doubt}", None)
    if largest in ("compute-bound", "communication-bound") and _balanced(account):
        return Conclusion(BALANCED, f"compute and communication take about as long; {share}", None)
    return Conclusion(_refined(account, largest), f"{share}{best}{_made_already(account, largest)}", None)


def _made_already(account: Account, category: str) -> str:
    """Return which fixes of a category's faults the run has made."""
    done = [why for finding, why in applied(account).items() if CATEGORY_OF_FINDING.get(finding) == category]
    return "".join(f"; {why}" for why in done)


def _doubt(account: Account, category: str, time_ns: float) -> str | None:
    """Return why the largest category does not bound the step after all, None where it does as far as is known."""
    if category == "straggler-bound" and not account.stragglers:
        return "no rank is later than the others: they take turns"
    from stepscope.diagnose.conclusion.removable import removable_ns  # only where no finding decides

    saved = removable_ns(account, category)
    if saved is None or saved >= _AGREES * time_ns:
        return None
    assert account.step is not None
    return f"the replay without it saves {100 * saved / account.step.step_ns:.0f} %: something else takes as long"


def _why_unknown(account: Account) -> str:
    idle = account.step.idle_ns if account.step else {}
    known = {cause: ns for cause, ns in idle.items() if cause in _WHY_UNKNOWN}
    return f": {_WHY_UNKNOWN[max(known, key=lambda c: known[c])]}" if known else ""


def _refined(account: Account, category: str) -> str:
    """Return `memory-bound` for compute of which over half is memory-bound kernels."""
    share = account.kernels.memory_bound_share or 0.0
    return MEMORY if category == "compute-bound" and share > _MIN_MEMORY_BOUND_SHARE else category


def _balanced(account: Account) -> bool:
    compute = sum(v.window.compute.total_ns for v in account.ranks if v.window)
    comm = sum(v.window.comm.total_ns for v in account.ranks if v.window)
    waited = sum(v.wait.wait_ns or 0 for v in account.ranks if v.wait)
    transfer = comm - waited
    return bool(compute and transfer > 0 and max(compute, transfer) <= _BALANCED * min(compute, transfer))
