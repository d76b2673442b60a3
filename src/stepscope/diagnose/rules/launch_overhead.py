"""`launch-overhead`: the host launches kernels more slowly than the device runs them."""

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.abilities import abilities
from stepscope.analyze.replay.changes import as_graph
from stepscope.analyze.step.phases import trains
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms, items_per_step


def launch_overhead(account: Account) -> list[Candidate]:
    """Return the host's own time as a cost, where there is a device to keep busy."""
    if account.replay is None or account.step is None or not any(r.has_device for r in account.run.ranks):
        return []
    gap = account.step.ns("launch_gap")
    return [
        Candidate(
            id="launch-overhead",
            title="The device waits for the host to launch",
            cause="python and operator dispatch take longer than the kernels they launch",
            remedy=_remedy(account),
            change=as_graph,
            cost_ns=gap,
            evidence=(
                Evidence("idle device while the host prepares launches, per step", host_ms(gap), "ms"),
                Evidence("device operations per step", round(items_per_step(account)), "launches"),
            ),
            doubt=0.2,
        )
    ]


def _remedy(account: Account) -> str:
    """Return how to launch the step at once: by graphs where PyTorch has them for the chip."""
    more = (
        "larger batches and fused optimizers help too" if trains(account.strategy.passes) else "larger batches help too"
    )
    saving = "The saving is of the step replayed as one graph."
    if abilities(account.run.ranks, account.chip.chip).graphs is False:
        return f"Launch the step as a graph with what the device's vendor has for it; {more}. {saving}"
    return (
        "Launch the step as a graph: torch.compile(model, mode='reduce-overhead'), or torch.cuda.graphs.make_graphed_callables; "
        f"{more}. {saving}"
    )
