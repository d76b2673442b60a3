"""`host-to-device-copy`: copies to the device from pageable memory, or not overlapped with compute."""

from collections.abc import Sequence

from stepscope.analyze.account import Account
from stepscope.analyze.host.calls import Mask
from stepscope.analyze.replay.changes import at_any_factor
from stepscope.analyze.replay.hidden_copies import hidden_copies
from stepscope.analyze.step.parts import COMPUTE_PART
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms, transfers_to_device, waits_for_copies
from stepscope.stats.middle import median

_AHEAD = "Copy one batch ahead on a stream of its own, with tensor.to(device, non_blocking=True)"
_PIN = (
    "pin_memory=True in the DataLoader and tensor.to(device, non_blocking=True), one batch ahead on a stream of its own"
)
_ONCE = "Make what does not change once, on the device, and copy with non_blocking=True"
_ONE = "Bring what belongs together in one copy"
_MANY = 4
"""copies per step that the host waits for; from so many on, to make one of them is the first thing to do"""


def host_to_device_copy(account: Account) -> list[Candidate]:
    """Return the copies to the device as a cost, with the host's waiting for them."""
    chosen = transfers_to_device(account)
    copying = device_ms(account, chosen)
    if not copying:
        return []
    pageable = _mostly_pageable(account, chosen)
    waits = _waits_per_step(account)
    evidence = [Evidence("host-to-device copies per step", round(copying, 3), "ms", "mean rank")]
    if waits:
        evidence.append(Evidence("copies that the host waits for, per step", round(waits, 1), "calls", "median rank"))
    return [
        Candidate(
            id="host-to-device-copy",
            title="The step waits for copies to the device",
            cause=_cause(pageable=pageable, waits=waits > 0),
            remedy=_remedy(pageable=pageable, waits=waits),
            change=at_any_factor(lambda replay: hidden_copies(replay, chosen)),
            cost_ns=copying * 1e6,
            limit_ns=_besides_compute_ns(account),
            evidence=tuple(evidence),
        )
    ]


def _waits_per_step(account: Account) -> float:
    if account.replay is None:
        return 0.0
    return median(waits_for_copies(account)) / max(len(account.replay.steps), 1)


def _besides_compute_ns(account: Account) -> float | None:
    """Return what the step takes beside compute, which no copy makes shorter."""
    step = account.step
    return None if step is None else step.step_ns - sum(step.ns(part) for part in COMPUTE_PART.values())


def _remedy(*, pageable: bool, waits: float) -> str:
    parts = [f"{_PIN if pageable or waits else _AHEAD}; send smaller types"]
    if waits:
        parts.insert(len(parts) if pageable else 0, _ONCE)
    if waits >= _MANY:
        parts.insert(0, _ONE)
    return f"{'. '.join(parts)}. The saving is of the step without these copies and without waiting for them."


def _cause(*, pageable: bool, waits: bool) -> str:
    if pageable:
        return "the source is pageable memory, so the copy blocks the host"
    return (
        "the host waits for each until all that was launched before it is done"
        if waits
        else "copies run alone, not beside compute"
    )


def _mostly_pageable(account: Account, chosen: Sequence[Mask]) -> bool:
    """Return whether pageable memory was the source for most of the copies' time: a few small ones explain nothing."""
    by_source = {True: 0, False: 0}
    for rank, mask in zip(account.run.ranks, chosen, strict=True):
        work = rank.work
        for name in set(work.name[mask].tolist()):
            mine = mask & (work.name == name)
            spent_ns = int((work.end_ns[mine] - work.start_ns[mine]).sum())
            by_source["Pageable" in (rank.trace.text(name) or "")] += spent_ns
    return by_source[True] > by_source[False]
