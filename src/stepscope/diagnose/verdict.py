"""What bounds the run, in one word and one reason?

    1. the recording cannot prove the largest part   `unclear`, with the limit of the recording
    2. a finding is worth 10 % of the step alone     the category of the first finding, and what it costs
    3. none is                                       the largest category of the budget, where the replay agrees that
                                                     removing it helps; `balanced` and `memory-bound` are refinements
    4. neither tells                                 `unclear`, with the reason

Every rendering shows this one conclusion.
"""

from stepscope.analyze.account import Account
from stepscope.analyze.budget import host_device_copies
from stepscope.analyze.owner_places import MOSTLY
from stepscope.analyze.replay.changes import (
    Change,
    as_graph,
    faster_network,
    faster_work,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
)
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import to_step
from stepscope.dataclass import dataclass
from stepscope.diagnose.finding import FAULTS, Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.ranks import ranks_text
from stepscope.diagnose.recording import EVERYTHING, applied, memory_bound_decoding, recording_of, why_unknown
from stepscope.run.rank import CPU, rank_ranges

# What a run can be bound by: which parts of the budget, and which findings, stand for each category.

UNCLEAR = "unclear"
BALANCED = "balanced"
MEMORY = "memory-bound"

# every part of the budget is in one category
PARTS_OF = {
    "compute-bound": ("forward", "backward", "optimizer", "other_compute"),
    "communication-bound": ("exposed_transfer",),
    "straggler-bound": ("wait",),
    "pipeline-bound": ("pipeline_bubble",),
    "copy-bound": ("copy",),
    "data-bound": ("data_loading",),
    "host-bound": ("launch_gap", "host_sync", "allocator", "host_stall"),
    UNCLEAR: ("unknown",),
}

_NOUN_OF = {
    "compute-bound": "compute",
    "communication-bound": "exposed communication",
    "straggler-bound": "waiting for other ranks",
    "pipeline-bound": "the pipeline's bubble",
    "copy-bound": "copying between host and device",
    "data-bound": "waiting for input",
    "host-bound": "the host",
    UNCLEAR: "what has no known cause",
}


def category_times_ns(account: Account) -> dict[str, float]:
    """Return what each category takes of the step; communication that no rank matches is communication."""
    step = account.step
    if step is None:
        return dict.fromkeys(PARTS_OF, 0.0)
    times = {name: sum(step.ns(p) for p in parts) for name, parts in PARTS_OF.items()}
    times["communication-bound"] += step.unmatched_ns
    times[UNCLEAR] -= step.unmatched_ns
    return times


def category_of_finding(account: Account, finding: Finding) -> str | None:
    """Return what a run is bound by whose largest fixable loss is this finding's; None for one that saves nothing.

    Work that need not be done costs the device's time, or the host's that launches it or waits for it: whichever is the
    larger here.
    """
    fault = FAULTS[finding.id]
    if finding.on_device or fault.category is None or not fault.or_host:
        return "compute-bound" if finding.on_device else fault.category
    times = category_times_ns(account)
    return max((fault.category, "host-bound"), key=lambda name: times[name])


def _cost_in_words(finding: Finding) -> str:
    """Return a finding in the words of a headline: `rank 1 costs 28 %`."""
    fault, named = FAULTS[finding.id], ranks_text(finding.ranks) if finding.ranks else ""
    if finding.id == "straggler":
        return f"{named} {'costs' if len(finding.ranks) == 1 else 'cost'} {finding.saving_pct:.0f} %"
    plural = fault.plural and not finding.subject
    on = f" ({named})" if named else ""
    return f"{finding.subject or fault.subject}{on} {'cost' if plural else 'costs'} {finding.saving_pct:.0f} %"


# How much shorter would the step be without a whole category of its budget? The replay's answer, as a cross-check.


def _removable_ns(account: Account, category: str) -> float | None:
    change = _change(account, category)
    if change is None or account.replay is None or account.step is None:
        return None
    try:
        saved = account.replay.period_ns - change(account.replay).period_ns
    except CircularWaits:
        return None
    return max(0.0, saved) * to_step(account.replay, account.step.step_ns)


def _change(account: Account, category: str) -> Change | None:
    if category == "communication-bound":
        # times as fast: a network that no longer matters
        return lambda replay: faster_network(replay, 100.0)
    if category == "data-bound":
        return without_data_wait
    if category == "copy-bound":
        copies = [host_device_copies(rank) for rank in account.run.ranks]
        return lambda replay: faster_work(replay, copies, 0.0)
    if category == "host-bound" and all(rank.has_device for rank in account.run.ranks):
        return _without_host
    return None


def _without_host(replay: Replay) -> Replay:
    for change in (without_stalls, without_allocator, without_syncs, as_graph):
        replay = change(replay)
    return replay


# of the step: a fix that saves as much alone decides the verdict
WORTH_NAMING_PCT = 10.0
# of a category's time has to go when it is taken out of the replay: else something else bounds the step
_AGREES = 0.25


@dataclass(frozen=True)
class Conclusion:
    """What bounds the run."""

    #: one of the contract's words
    verdict: str
    reason: str
    #: the finding that decided it; None where the budget did
    first: Finding | None

    @property
    def headline(self) -> str:
        """Return verdict and reason in one line."""
        return f"{self.verdict}: {self.reason}"


def conclude(account: Account, diagnosis: Diagnosis) -> Conclusion:
    """Return the verdict with its reason."""
    first = next(iter(diagnosis.worth), None)
    limit = _deciding_limit(account, first)
    if limit is not None:
        return Conclusion(UNCLEAR, limit, None)
    if first is not None and first.saving_pct >= WORTH_NAMING_PCT:
        category = category_of_finding(account, first)
        if category is not None:
            return Conclusion(_refined(account, category), _cost_in_words(first), first)
    return _by_budget(account, first)


def _deciding_limit(account: Account, first: Finding | None) -> str | None:
    """Return the limit of the recording whose categories take more of the step than anything that it proves."""
    times, limits = category_times_ns(account), recording_of(account).limits
    for limit, reason in limits:
        lost = sum(times[category] for category in limit.unprovable)
        if limit.unprovable >= EVERYTHING:
            return f"{reason}; {limit.again}"
        proved = [ns for category, ns in times.items() if category not in limit.unprovable]
        if lost > max(*proved, first.alone_ns if first is not None else 0.0):
            return f"{reason}; {limit.again}"
    return None


def budget_note(account: Account, conclusion: Conclusion) -> str | None:
    """Return the sentence that connects the largest part of the budget with another verdict; None where they agree.

    A part can fill the step on the device and still decide nothing: ranks wait in transfers for a slow host.
    """
    step, times = account.step, category_times_ns(account)
    largest = max(times, key=lambda name: times[name])
    if step is None or not step.step_ns or conclusion.first is None or largest in (conclusion.verdict, UNCLEAR):
        return None
    if times[largest] < MOSTLY * step.step_ns or (largest == "compute-bound" and conclusion.verdict == MEMORY):
        return None
    saved = _removable_ns(account, largest)
    if saved is None or saved >= MOSTLY * times[largest]:
        return None
    share, gain = 100 * times[largest] / step.step_ns, 100 * saved / step.step_ns
    return (
        f"{_NOUN_OF[largest].capitalize()} takes {share:.0f} % of the {account.whole} on the device, but removing all of it "
        f"would save {gain:.0f} %: {_cost_in_words(conclusion.first)}."
    )


def _by_budget(account: Account, first: Finding | None) -> Conclusion:
    step = account.step
    if step is None or not step.step_ns:
        return Conclusion(UNCLEAR, "no step was recorded", None)
    unseen = [r.rank for r in account.run.ranks if not r.has_device and r.device_name != CPU]
    if unseen:
        return Conclusion(UNCLEAR, f"nothing that the device of rank {rank_ranges(unseen)} did is in the trace", None)
    times = category_times_ns(account)
    largest = max(times, key=lambda name: times[name])
    share = f"{_NOUN_OF[largest]} takes {100 * times[largest] / step.step_ns:.0f} % of the {account.whole}"
    best = "" if first is None else f"; no single fix saves {WORTH_NAMING_PCT:.0f} %"
    if largest == UNCLEAR:
        return Conclusion(UNCLEAR, f"{share}{why_unknown(account)}", None)
    doubt = _doubt(account, largest, times[largest])
    if doubt is not None:
        return Conclusion(UNCLEAR, f"{share}, but {doubt}", None)
    if largest in ("compute-bound", "communication-bound") and _balanced(account):
        return Conclusion(BALANCED, f"compute and communication take about as long; {share}", None)
    decodes = memory_bound_decoding(account) if largest == "compute-bound" else None
    why = f"; {decodes}" if decodes is not None else ""
    return Conclusion(_refined(account, largest), f"{share}{why}{best}{_made_already(account, largest)}", None)


def _made_already(account: Account, category: str) -> str:
    done = [why for finding, why in applied(account).items() if FAULTS[finding].category == category]
    return "".join(f"; {why}" for why in done)


def _doubt(account: Account, category: str, time_ns: float) -> str | None:
    if category == "straggler-bound" and not account.stragglers:
        return "no rank is later than the others: they take turns"

    saved = _removable_ns(account, category)
    if saved is None or saved >= _AGREES * time_ns:
        return None
    assert account.step is not None
    return f"the replay without it saves {100 * saved / account.step.step_ns:.0f} %: something else takes as long"


def _refined(account: Account, category: str) -> str:
    share = account.kernels.memory_bound_share or 0.0
    decodes = memory_bound_decoding(account) is not None
    return MEMORY if category == "compute-bound" and (share > 0.5 or decodes) else category


def _balanced(account: Account) -> bool:
    compute = sum(v.window.compute.total_ns for v in account.ranks if v.window)
    comm = sum(v.window.comm.total_ns for v in account.ranks if v.window)
    transfer = comm - sum(v.wait.wait_ns or 0 for v in account.ranks if v.wait)
    return bool(compute and transfer > 0 and max(compute, transfer) <= 1.2 * min(compute, transfer))
