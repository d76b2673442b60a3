"""`host-to-device-copy`: copies to the device from pageable memory, or not overlapped with compute."""

from collections.abc import Sequence

from stepscope.analyze.account import Account
from stepscope.analyze.host.calls import Mask
from stepscope.analyze.replay.changes import faster_work
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import device_ms, transfers_to_device

_AHEAD = "Copy one batch ahead on a stream of its own, with tensor.to(device, non_blocking=True)"
_PIN = (
    "pin_memory=True in the DataLoader and tensor.to(device, non_blocking=True), one batch ahead on a stream of its own"
)


def host_to_device_copy(account: Account) -> list[Candidate]:
    """Return the copies to the device as a cost."""
    chosen = transfers_to_device(account)
    copying = device_ms(account, chosen)
    if not copying:
        return []
    pageable = _mostly_pageable(account, chosen)
    return [
        Candidate(
            id="host-to-device-copy",
            title="The step waits for copies to the device",
            cause="the source is pageable memory, so the copy blocks the host"
            if pageable
            else "copies run alone, not beside compute",
            remedy=f"{_PIN if pageable else _AHEAD}; send smaller types. The saving is this time gone from the critical path.",
            change=lambda replay: faster_work(replay, chosen, 0.0),
            cost_ns=copying * 1e6,
            evidence=(Evidence("host-to-device copies per step", round(copying, 3), "ms", "mean rank"),),
        )
    ]


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
