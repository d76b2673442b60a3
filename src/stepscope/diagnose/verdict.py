"""What bounds the run, in one word (D2)?"""

from stepscope.analyze.account import Account

COMPUTE = ("forward", "backward", "optimizer", "other_compute", "copy")
HOST = ("launch_gap", "host_sync", "allocator", "host_stall", "unknown")
_BALANCED = 1.2
_MOST_OF_COMPUTE = 0.5


def verdict(account: Account) -> str | None:
    """Return the bound that the largest part of the step names; None where no step was recorded.

    Communication that no recorded rank matches is waiting or transfer, nobody knows which: it counts as communication.
    A pipeline's bubble names none of them: it is the schedule's, and a finding of its own. `balanced` where total
    compute and total communication are within a factor of 1.2 and one of them is the largest;
    `memory-bound` where compute is the largest and memory-bound kernels are over half of it.
    """
    step = account.step
    if step is None:
        return None
    parts = {
        "compute-bound": sum(step.ns(p) for p in COMPUTE),
        "communication-bound": step.ns("exposed_transfer") + step.unmatched_ns,
        "straggler-bound": step.ns("wait"),
        "host-bound": sum(step.ns(p) for p in HOST) - step.unmatched_ns,
        "data-bound": step.ns("data_loading"),
    }
    largest = max(parts, key=lambda name: parts[name])
    if largest in ("compute-bound", "communication-bound") and _balanced(account):
        return "balanced"
    if largest == "compute-bound" and (account.kernels.memory_bound_share or 0.0) > _MOST_OF_COMPUTE:
        return "memory-bound"
    return largest


def _balanced(account: Account) -> bool:
    compute = sum(a.compute.total_ns for a in account.ranks if a)
    comm = sum(a.comm.total_ns for a in account.ranks if a)
    waited = sum(w.wait_ns or 0 for w in account.waits if w)
    transfer = comm - waited
    return bool(compute and transfer > 0 and max(compute, transfer) <= _BALANCED * min(compute, transfer))
