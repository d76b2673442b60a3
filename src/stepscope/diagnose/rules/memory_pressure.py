"""`memory-pressure`: memory near the limit, or growing from step to step."""

from stepscope.analyze.account import Account
from stepscope.analyze.memory.usage import RankMemory
from stepscope.diagnose.finding import Candidate, Evidence

_NEAR_PCT = 95.0
_MAX_SUSPECTS = 3


def memory_pressure(account: Account) -> list[Candidate]:
    """Return ranks within 5 % of their device's memory, whose cache is emptied in between, or that keep growing."""
    if account.memory is None:
        return []
    full = [r for r in account.memory.ranks if (r.peak_pct_of_total or 0.0) >= _NEAR_PCT]
    flushed = [r for r in account.memory.ranks if r.allocator_retries]
    growing = [r for r in account.memory.ranks if r.growth is not None and r.growth.leaks]
    pressed = {r.rank: r for r in (*full, *flushed, *growing)}
    if not pressed:
        return []
    return [
        Candidate(
            id="memory-pressure",
            title="Device memory is nearly full" if full or flushed else "Device memory grows from step to step",
            cause="the allocator has to empty its cache"
            if flushed
            else "near the limit"
            if full
            else "something keeps tensors alive",
            remedy="Free what is not needed (detach losses that are kept for logging, zero_grad(set_to_none=True)), checkpoint activations, shard "
            "optimizer state, or lower the batch; PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragments.",
            fixed_saving_ns=0.0,
            ranks=tuple(sorted(pressed)),
            evidence=tuple(e for r in pressed.values() for e in _evidence(r)),
            always=True,
        )
    ]


def _evidence(r: RankMemory) -> list[Evidence]:
    where = f"rank {r.rank}"
    lines = []
    if r.peak_pct_of_total is not None:
        lines.append(Evidence("peak of the device's memory", round(r.peak_pct_of_total, 1), "%", where))
    if r.allocator_retries:
        lines.append(Evidence("times the cache was emptied", r.allocator_retries, "", where))
    if r.growth is not None and r.growth.leaks:
        lines.append(Evidence("growth per step", round(r.growth.bytes_per_step), "bytes", where))
        for leak in r.leaks[:_MAX_SUSPECTS]:
            kept = f"of each of {leak.steps} steps kept by {leak.name}"
            lines.append(Evidence(kept, round(leak.bytes_per_step), "bytes", where))
    return lines
