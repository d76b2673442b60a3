"""A finding in the words of a headline: `rank 1 costs 28 %`."""

from collections.abc import Sequence

from stepscope.diagnose.finding import Finding

_SUBJECT = {
    "data-loading": "waiting for input",
    "launch-overhead": "launching kernels one by one",
    "host-device-sync": "waiting of the host for the device",
    "host-to-device-copy": "copying to the device",
    "host-stall": "a host that does something else",
    "allocator": "allocating device memory",
    "precision": "matrix products wider than 16 bit",
    "mixed-precision-overhead": "loss scaling",
    "memory-bound-attention": "unfused attention",
    "memory-bound-kernels": "unfused elementwise kernels",
    "optimizer": "an unfused optimizer",
    "recomputation": "recomputation",
    "communication-bound": "waiting for transfers",
    "no-overlap": "communication after backward instead of beside it",
    "too-many-small-collectives": "communication in many small messages",
    "redundant-communication": "synchronising gradients more than once",
    "load-imbalance": "uneven work",
    "expert-imbalance": "uneven routing of tokens",
    "pipeline-bubble": "too few micro-batches",
    "slow-link": "a slow link",
}
_PLURAL = ("precision", "memory-bound-kernels", "pipeline-bubble")


def cost_in_words(finding: Finding) -> str:
    """Return what a finding costs, with whom it names."""
    if finding.id == "straggler":
        return f"{_ranks(finding.ranks)} {'costs' if len(finding.ranks) == 1 else 'cost'} {finding.saving_pct:.0f} %"
    subject = finding.subject or _SUBJECT.get(finding.id, finding.title)
    on = f" ({_ranks(finding.ranks)})" if finding.ranks else ""
    plural = finding.id in _PLURAL and not finding.subject
    return f"{subject}{on} {'cost' if plural else 'costs'} {finding.saving_pct:.0f} %"


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = [str(r) for r in ranks[:4]]
    return f"ranks {', '.join(shown[:-1])} and {shown[-1]}" if len(ranks) <= 4 else f"ranks {', '.join(shown)}, ..."
