"""`allocator`: the step gets and returns device memory (cudaMalloc, cudaFree, retries)."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import without_allocator
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, typical_host_ns


def allocator(account: Account) -> list[Candidate]:
    """Return the time the usual rank's host spent in calls for device memory."""
    spent = typical_host_ns(account, "allocator_ns")
    if not spent:
        return []
    return [
        Candidate(
            id="allocator",
            title="Device memory is allocated and freed inside the step",
            cause="cudaMalloc and cudaFree block the host and the device; a caching allocator calls them only at first",
            remedy="Remove torch.cuda.empty_cache() from the loop; set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; keep "
            "shapes constant or pad them; lower the peak so that the cache is not flushed. The saving is these calls gone.",
            change=without_allocator,
            cost_ns=spent,
            evidence=(Evidence("time in allocation calls per step", host_ms(spent), "ms", "median rank"),),
        )
    ]
