"""What `stepscope whatif --set KEY=VALUE` can change: every key, its values and what it does.

Texts only: the help shows them without the analysis, `settings` has the change of each.
"""

from stepscope.records import dataclass

FAMILY = "kernel:FAMILY"


@dataclass(frozen=True)
class Setting:
    """One key, the values it takes and what it does."""

    key: str
    values: str
    what: str


# every key of `--set`
SETTINGS = (
    Setting("straggler", "off|RANK,...", "late ranks, or these, as fast as the others' median"),
    Setting("load", "even", "the same work spread evenly over the ranks"),
    Setting("overlap", "perfect", "gradients sent while backward runs, in 4 MB pieces"),
    Setting("network", "2x", "every transfer that many times as fast"),
    Setting("bytes", "0.5x", "every collective moves that share of its bytes"),
    Setting("bucket_mb", "25", "gradients in buckets of that many MB"),
    Setting("data", "instant", "every batch ready when requested"),
    Setting("sync", "off", "the host never waits for the device"),
    Setting("launch", "graph", "each step launched as one graph"),
    Setting("stalls", "off", "no host stalls"),
    Setting("allocator", "off", "no calls for device memory"),
    Setting("copies", "hidden", "no time in copies between host and device, no waiting for those to it"),
    Setting("recompute", "off", "no forward work repeated in backward"),
    Setting(FAMILY, "2x", "kernels of a family (gemm, attention, ...) that many times as fast"),
    Setting("microbatches", "16", "that many micro-batches of a pipeline, same total work"),
    Setting("accumulation", "no_sync", "gradients synchronised once"),
    Setting("optimizer", "fused", "a fused optimizer"),
    Setting("precision", "16bit", "matrix products in 16 bit"),
    Setting("attention", "fused", "fused attention"),
    Setting("kernels", "fused", "consecutive elementwise kernels fused into one"),
    Setting("scaler", "off", "no loss scaling"),
    Setting("experts", "even", "tokens routed evenly"),
    Setting("links", "even", "slow groups as fast as their siblings"),
)
