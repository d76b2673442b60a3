"""`host-stall` with what belongs to it: state that is copied to the host, which stops training as much as the writing."""

from dataclasses import replace

from stepscope.analyze.account import Account
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.state_saves import save_ns, without_state_saves
from stepscope.analyze.step.phases import trains
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.host_stall import host_stall
from stepscope.diagnose.rules.measures import host_ms


def host_stall_and_saves(account: Account) -> list[Candidate]:
    """Return the host's stalls; where training saves its state, the last of them with the copies to the host. What a
    job that does not train copies there are its results.
    """
    found = host_stall(account)
    saving = save_ns(account.replay) if account.replay is not None and trains(account.strategy.passes) else 0.0
    if not saving:
        return found
    others, stall = (found[:-1], found[-1]) if found else ([], _NO_STALL)
    stalled = stall.change

    def without_both(replay: Replay) -> Replay:
        return without_state_saves(stalled(replay) if stalled is not None else replay)

    both = replace(
        stall,
        title="State is saved inside the step",
        cause="many tensors in a row are copied to the host, and nothing is computed meanwhile: a checkpoint",
        remedy="Save less often, or in the background: torch.distributed.checkpoint.async_save, or copy the state to "
        "pinned memory and write it in a thread. The saving is this time gone.",
        change=without_both,
        cost_ns=(stall.cost_ns or 0.0) + saving,
        evidence=(
            Evidence("copies of state and the host between them, per step", host_ms(saving), "ms"),
            *stall.evidence,
        ),
    )
    return [*others, both]


_NO_STALL = Candidate(id="host-stall", title="", cause="", remedy="", sureness=0.85)
