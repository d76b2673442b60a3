"""`communication-bound`: transfer time that no overlap could hide."""

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.abilities import abilities
from stepscope.analyze.replay.communication_changes import fewer_bytes
from stepscope.analyze.step.phases import trains
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.gradient_sync import communicates
from stepscope.diagnose.rules.measures import host_ms
from stepscope.diagnose.rules.wrapper_broadcasts import broadcasts_in_forward


def communication_bound(account: Account) -> list[Candidate]:
    """Return exposed transfer as a cost, with half the bytes as the fix; what need not be sent at all stays."""
    if account.step is None or account.replay is None or not communicates(account.replay):
        return []
    exposed = account.step.ns("exposed_transfer") + account.step.unmatched_ns
    needless = broadcasts_in_forward(account)
    return [
        Candidate(
            id="communication-bound",
            title="The step waits for transfers",
            cause="more bytes cross the links than compute can hide",
            remedy=_remedy(account),
            change=lambda replay: fewer_bytes(replay, 0.5, kept=needless),
            cost_ns=exposed,
            evidence=(Evidence("exposed transfer per step", host_ms(exposed), "ms", "mean rank"),),
            what_if=() if any(mask.any() for mask in needless) else None,
            doubt=0.2,
        )
    ]


def _remedy(account: Account) -> str:
    """Return how to send half the bytes: of gradients where the run trains, in the 16-bit type that the chip has."""
    if not trains(account.strategy.passes):
        return (
            "Send half the bytes: activations in 16 or 8 bit; keep tensor-parallel groups within the fast links. The saving is "
            "of half the bytes."
        )
    narrow = abilities(account.run.ranks, account.chip.chip).narrow
    hook = "fp16_compress_hook" if narrow == "float16" else "bf16_compress_hook"
    return (
        f"Send half the bytes: 16-bit gradients (ddp.register_comm_hook(None, {hook}), FSDP "
        f"MixedPrecisionPolicy(reduce_dtype=torch.{narrow})); accumulate gradients over more micro-batches; shard within the fast "
        "links. The saving is of half the bytes."
    )
