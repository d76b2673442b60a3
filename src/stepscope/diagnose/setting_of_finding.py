"""Which setting of a what-if is the fix that a finding proposes?"""

SETTING_OF_FINDING = {
    "straggler": "straggler=off",
    "load-imbalance": "load=even",
    "no-overlap": "overlap=perfect",
    "communication-bound": "bytes=0.5x",
    "too-many-small-collectives": "bucket_mb=4",
    "data-loading": "data=instant",
    "host-device-sync": "sync=off",
    "launch-overhead": "launch=graph",
    "host-stall": "stalls=off",
    "allocator": "allocator=off",
    "host-to-device-copy": "copies=hidden",
    "recomputation": "recompute=off",
    "redundant-communication": "accumulation=no_sync",
    "optimizer": "optimizer=fused",
    "precision": "precision=16bit",
    "memory-bound-attention": "attention=fused",
    "memory-bound-kernels": "kernels=fused",
    "mixed-precision-overhead": "scaler=off",
    "expert-imbalance": "experts=even",
    "slow-link": "links=even",
}
FINDING_OF_SETTING = {setting: finding for finding, setting in SETTING_OF_FINDING.items()}


def setting_of_finding(finding: str, *, microbatches: int | None = None) -> str | None:
    """Return the setting, None where a finding has none (a batch, memory, the profiler).

    The fix of a pipeline's bubble is four times its micro-batches, so the setting needs their number.
    """
    if finding == "pipeline-bubble":
        return None if not microbatches else f"microbatches={MORE_MICROBATCHES * microbatches}"
    return SETTING_OF_FINDING.get(finding)


MORE_MICROBATCHES = 4
