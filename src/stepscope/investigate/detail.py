"""What lies behind the category of a run: the numbers to look at first, by what bounds it."""

from collections.abc import Callable

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Evidence
from stepscope.units import NS_PER_MS, printable, readable_bytes

_TOP = 5


def detail_facts(account: Account, bound: str | None) -> list[Evidence]:
    """Return the facts for a verdict; none where no step was recorded."""
    return _FACTS[bound](account) if bound in _FACTS else []


def _compute(account: Account) -> list[Evidence]:
    kernels = account.kernels
    facts = [
        Evidence(printable(k.name, width=60), round(100 * k.share, 1), "% of kernel time", k.bound or k.family)
        for k in kernels.top(_TOP)
    ]
    for what, share in (
        ("matrix products on tensor cores", kernels.tensor_core_share),
        ("memory-bound share of compute", kernels.memory_bound_share),
    ):
        if share is not None:
            facts.append(Evidence(what, round(100 * share, 1), "%"))
    losses = [row for row in account.waterfall.rows or () if row.loss != "achieved" and row.pct_of_peak is not None]
    worst = sorted(losses, key=lambda r: -(r.pct_of_peak or 0.0))[:_TOP]
    facts += [Evidence(f"lost to {row.loss}", round(row.pct_of_peak or 0.0, 1), "% of peak") for row in worst]
    return facts


def _communication(account: Account) -> list[Evidence]:
    steps = max(account.num_steps, 1)
    facts = []
    for row in account.collectives[:_TOP]:
        size = (
            "unknown size"
            if row.size_bytes is None
            else f"{readable_bytes(row.size_bytes / steps)} per {account.whole}"
        )
        exposed = round(row.exposed_ns / steps / NS_PER_MS, 2)
        facts.append(
            Evidence(f"{row.op} exposed", exposed, f"ms per {account.whole}", f"{row.count / steps:g} calls, {size}")
        )
        if row.busbw_gb_per_s is not None:
            facts.append(Evidence(f"{row.op} bus bandwidth", round(row.busbw_gb_per_s, 2), "GB/s"))
    if account.overlap_efficiency is not None:
        facts.append(Evidence("overlap efficiency", round(account.overlap_efficiency, 2)))
    return facts


def _stragglers(account: Account) -> list[Evidence]:
    facts = [
        Evidence(
            f"rank {s.rank} late because of its {s.cause}",
            round(s.late_ns_per_step / NS_PER_MS, 2),
            "ms per step",
            f"{s.steps_late} of {s.num_steps} steps",
        )
        for s in account.stragglers
    ]
    facts += _waits(account)
    view = account.views.pipeline
    if view is not None:
        facts.append(Evidence("pipeline bubble", round(view.bubble_pct, 1), "% of the step"))
    return facts


def _waits(account: Account) -> list[Evidence]:
    """Return who waits most and who waits least for the others; nothing where nobody waits or all wait alike."""
    known = [(v.rank.rank, v.wait.wait_ns) for v in account.ranks if v.wait and v.wait.wait_ns is not None]
    shown = [(rank, round(ns / max(account.num_steps, 1) / NS_PER_MS, 2)) for rank, ns in known]
    if len({wait for _, wait in shown}) < 2:
        return []
    ends = (("waits most", max(shown, key=lambda w: w[1])), ("waits least", min(shown, key=lambda w: w[1])))
    return [Evidence(f"rank {rank} {which}", wait, f"ms per {account.whole}") for which, (rank, wait) in ends]


def _host(account: Account) -> list[Evidence]:
    step, kernels = account.step, account.kernels
    causes = sorted((step.idle_ns if step else {}).items(), key=lambda pair: -pair[1])[:_TOP]
    facts = [
        Evidence(f"device idle: {cause}", round(ns / NS_PER_MS, 2), f"ms per {account.whole}") for cause, ns in causes
    ]
    if kernels.launches_per_step is not None:
        facts.append(Evidence("launches", round(kernels.launches_per_step), f"per {account.whole}"))
    facts.append(Evidence("kernels shorter than a launch", round(100 * kernels.short_count_share, 1), "% of kernels"))
    return facts


def _data(account: Account) -> list[Evidence]:
    step = account.step
    facts = (
        [Evidence("waiting for input", round(step.ns("data_loading") / NS_PER_MS, 2), f"ms per {account.whole}")]
        if step
        else []
    )
    return facts + _stragglers(account)


def _copies(account: Account) -> list[Evidence]:
    step = account.step
    copying = [Evidence("copies", round(step.ns("copy") / NS_PER_MS, 2), f"ms per {account.whole}")] if step else []
    return copying + _host(account)


_FACTS: dict[str | None, Callable[[Account], list[Evidence]]] = {
    "compute-bound": _compute,
    "memory-bound": _compute,
    "balanced": lambda account: _compute(account) + _communication(account),
    "communication-bound": _communication,
    "straggler-bound": _stragglers,
    "host-bound": _host,
    "data-bound": _data,
    "copy-bound": _copies,
    "pipeline-bound": _stragglers,
    "unclear": lambda account: _host(account) + _communication(account),
}
