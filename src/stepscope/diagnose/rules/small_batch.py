"""`small-batch`: too little work per kernel to fill the device."""

from stepscope.analyze.account import Account
from stepscope.diagnose.counted_places import short_kernel_places
from stepscope.diagnose.finding import Candidate, Evidence

_SHORT_SHARE = 0.5
_BUSY = 0.5


def small_batch(account: Account) -> list[Candidate]:
    """Return a device that is mostly idle between short kernels: more work per step would be nearly free."""
    short = account.kernels.short_count_share
    windows = [v.window for v in account.ranks if v.window is not None and v.window.window_ns]
    busy = sum(a.compute.total_ns for a in windows) / max(sum(a.window_ns for a in windows), 1)
    if short < _SHORT_SHARE or busy > _BUSY or not any(r.has_device for r in account.run.ranks):
        return []
    return [
        Candidate(
            id="small-batch",
            title="Too little work per kernel",
            cause="most kernels end before the host can launch the next one",
            remedy="Raise the batch (or sequence) per device until the device is busy; the step hardly grows until then, so throughput "
            "does. No saving per step is claimed: the step has more samples.",
            fixed_saving_ns=0.0,
            evidence=(
                Evidence("kernels shorter than a launch", round(100 * short, 1), "% of launches"),
                Evidence("device busy with compute", round(100 * busy, 1), "% of the window"),
            ),
            where=short_kernel_places(account),
            always=True,
            sureness=0.7,
        )
    ]
