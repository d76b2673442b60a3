"""The time that a kind of fix can remove at most, per step: what its rule claims, by the budget."""

from stepscope.analyze.account import Account

COMPUTE_PARTS = ("forward", "backward", "optimizer", "other_compute")


def not_busy_ns(account: Account) -> float | None:
    """Return the time in which the device neither computes nor copies nor moves data: what a faster host can remove.

    Waiting for other ranks is in it: their hosts become faster too.
    """
    step = account.step
    if step is None or not any(view.on_device for view in account.ranks):
        return None
    return step.step_ns - step.unmatched_ns - sum(step.ns(p) for p in (*COMPUTE_PARTS, "copy", "exposed_transfer"))


def not_busy_or_copying_ns(account: Account) -> float | None:
    """Return the same with copies between host and device: what the host does there goes with them."""
    idle = not_busy_ns(account)
    return None if idle is None or account.step is None else idle + account.step.ns("copy")


def launching_ns(account: Account) -> float | None:
    """Return the time in which nothing but slow launching can be what the device waits for.

    Loading data, stalls, synchronisation and the allocator have causes of their own. So has waiting for a rank that
    is late: what the mean rank waits for it goes to the straggler, the rest to hosts that take turns at being slow.
    """
    step = account.step
    if step is None or not_busy_ns(account) is None:
        return None
    late = {s.rank: s.late_ns_per_step for s in account.stragglers}
    num_ranks = max(len(account.run.ranks), 1)
    for_late = max(late.values(), default=0.0) * (num_ranks - len(late)) / num_ranks
    return step.ns("launch_gap") + max(0.0, step.ns("wait") - for_late)


def not_computing_ns(account: Account) -> float | None:
    """Return the time without compute or copies: what any change of the communication can remove."""
    step = account.step
    if step is None or not any(view.on_device for view in account.ranks):
        return None
    return step.step_ns - sum(step.ns(p) for p in (*COMPUTE_PARTS, "copy"))


def with_work_ns(account: Account, work_ns: float) -> float | None:
    """Return what can go with some device work: its own time, and the time in which the host launches it."""
    idle = not_busy_ns(account)
    return None if idle is None else idle + work_ns
