"""Do the numbers of one report fit each other? Read from its JSON alone, as any other program would.

part        of the step: 0 at least; all of them are the step
saving      within its interval, and no more than the step, what it costs, or the time that such a fix can remove
cost        no more than the step
rank        waits within communication, communication within the window, shares between 0 and 100
straggler   no later than the longest step is long
"""

from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]

SLACK_MS = 2e-3
"""what rounding to the contract's digits may change"""
_SLACK = 1e-3
"""of a time, for the same reason"""
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
_BUSY = (*_COMPUTE, "copy", "exposed_transfer")
_NOT_REMOVED = {
    "data-loading": _BUSY,
    "host-device-sync": _BUSY,
    "allocator": _BUSY,
    "launch-overhead": _BUSY,
    "host-stall": (*_COMPUTE, "exposed_transfer"),
    "no-overlap": (*_COMPUTE, "copy"),
    "communication-bound": (*_COMPUTE, "copy"),
    "too-many-small-collectives": (*_COMPUTE, "copy"),
    "pipeline-bubble": (*_COMPUTE, "copy"),
}
"""parts of the budget that the fix of a finding leaves as they are: it saves no more than the rest"""

_OF_A_RANK = ("compute_ms", "comm_ms", "memory_ms", "exposed_comm_ms", "idle_ms", "wait_ms", "transfer_ms")


def misfits(report: Json) -> Iterator[str]:
    """Yield every number of a report that another one of it rules out."""
    yield from _of_the_step(report)
    yield from _of_findings(report)
    yield from _of_ranks(report)
    yield from _of_stragglers(report)
    yield from _of_efficiency(report)


def _step_ms(report: Json) -> float | None:
    step = report["step"]
    known = step["unprofiled_ms"] if step["unprofiled_ms"] is not None else step["profiled_ms"]
    return None if known is None else float(known)


def _within(value: float, most: float) -> bool:
    return value <= most * (1 + _SLACK) + SLACK_MS


def _of_the_step(report: Json) -> Iterator[str]:
    step_ms, parts = _step_ms(report), report["step"]["budget"]
    if parts and step_ms is not None:
        total = sum(p["ms_per_step"] for p in parts)
        if not (_within(total, step_ms) and _within(step_ms, total)):
            yield f"the parts of the budget are {total:.3f} ms, the step is {step_ms:.3f}"
        for p in parts:
            if p["ms_per_step"] < 0 or abs(p["pct"] - 100 * p["ms_per_step"] / step_ms) > 0.1:
                yield f"{p['part']}: {p['ms_per_step']} ms is {p['pct']} % of {step_ms:.3f}"
    lost = [row["pct_of_peak"] for row in report["waterfall"] or ()]
    if lost and (abs(sum(lost) - 100) > 0.5 or min(lost) < 0):
        yield f"the waterfall is {lost}, {sum(lost):.2f} together"


def _of_findings(report: Json) -> Iterator[str]:
    step_ms = _step_ms(report)
    parts = {p["part"]: p["ms_per_step"] for p in report["step"]["budget"] or ()}
    on_device = any(rank["compute_ms"] for rank in report["ranks"]) and report["run"]["device"] != "CPU"
    for f in report["findings"]:
        saved, cost = f["saving_alone_ms"], f["cost_ms_per_step"]
        if step_ms is None:
            yield f"{f['id']} beside a step that is not known"
            continue
        if cost is not None and not (_within(cost, step_ms) and _within(saved, cost)):
            yield f"{f['id']} costs {cost} and saves {saved} of {step_ms:.3f} ms"
        if not (_within(saved, f["saving_high_ms"]) and _within(f["saving_low_ms"], saved) and f["saving_low_ms"] >= 0):
            yield f"{f['id']}: {saved} ms is not in {f['saving_low_ms']} to {f['saving_high_ms']}"
        if not _within(max(saved, f["saving_high_ms"], f["saving_ms_per_step"]), step_ms):
            yield f"{f['id']} saves up to {f['saving_high_ms']} of {step_ms:.3f} ms"
        if abs(f["saving_pct"] - 100 * saved / step_ms) > 0.1:
            yield f"{f['id']}: {f['saving_pct']} % is not {saved} of {step_ms:.3f} ms"
        # A line that is taken out may take the device's work with it.
        kept = _NOT_REMOVED.get(f["id"]) if on_device and not f["where"] else None
        if kept and not _within(saved, step_ms - sum(parts.get(name, 0.0) for name in kept)):
            yield f"{f['id']} saves {saved} ms, {step_ms:.3f} less {', '.join(kept)} is what it can remove"
    together = [row["saving_ms_per_step"] for row in report["findings_combined"]]
    if together and (together != sorted(together) or step_ms is None or not _within(together[-1], step_ms)):
        yield f"together the first ones save {together} ms of {step_ms}"


def _of_ranks(report: Json) -> Iterator[str]:
    for rank in report["ranks"]:
        name, window = f"rank {rank['rank']}", rank["window_ms"]
        known = {key: rank[key] for key in _OF_A_RANK if rank[key] is not None}
        for key, value in known.items():
            if value < 0 or (window is not None and not _within(value, window)):
                yield f"{name}: {key} is {value} in a window of {window}"
        comm = known.get("comm_ms")
        if comm is not None:
            for key in ("exposed_comm_ms", "wait_ms", "transfer_ms"):
                if key in known and not _within(known[key], comm):
                    yield f"{name}: {key} is {known[key]} of {comm} ms of communication"
            # What no other rank matches is neither.
            both = known.get("wait_ms", 0.0) + known.get("transfer_ms", 0.0)
            if not _within(both, comm):
                yield f"{name}: waits and transfers are {both} of {comm} ms of communication"
        if rank["overlap_pct"] is not None and not 0 <= rank["overlap_pct"] <= 100:
            yield f"{name}: {rank['overlap_pct']} % of communication is hidden"


def _of_stragglers(report: Json) -> Iterator[str]:
    longest = max((ms for rank in report["ranks"] for ms in rank["step_ms"] or ()), default=None)
    longest = max(longest or 0.0, _step_ms(report) or 0.0)
    for s in report["stragglers"]:
        if s["late_ms_per_step"] <= 0 or not _within(s["late_ms_per_step"], longest):
            yield f"rank {s['rank']} is {s['late_ms_per_step']} ms late in steps of at most {longest:.3f}"


def _of_efficiency(report: Json) -> Iterator[str]:
    used = report["efficiency"]
    shares = [(key, used[key]) for key in ("mfu", "hfu") if used[key] is not None]
    for key, share in shares:
        if not 0 <= share <= 1:
            yield f"{key} is {share}"
    if len(shares) == 2 and not _within(shares[0][1], shares[1][1]):
        yield f"MFU {used['mfu']} is above HFU {used['hfu']}"
