"""`communication-bound`: transfer time that no overlap could hide."""

from stepscope.analyze.account import Account
from stepscope.analyze.replay.communication_changes import fewer_bytes
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import communicates
from stepscope.diagnose.rules.measures import host_ms


def communication_bound(account: Account) -> list[Candidate]:
    """Return exposed transfer as a cost, with half the bytes as the fix."""
    if account.step is None or account.replay is None or not communicates(account.replay):
        return []
    exposed = account.step.ns("exposed_transfer") + account.step.unmatched_ns
    return [
        Candidate(
            id="communication-bound",
            title="The step waits for transfers",
            cause="more bytes cross the links than compute can hide",
            remedy="Send half the bytes: 16-bit gradients (ddp.register_comm_hook(None, bf16_compress_hook), FSDP "
            "MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)); accumulate gradients over more micro-batches; shard within the fast "
            "links. The saving is of half the bytes.",
            change=lambda replay: fewer_bytes(replay, 0.5),
            cost_ns=exposed,
            evidence=(Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),),
            doubt=0.2,
        )
    ]
