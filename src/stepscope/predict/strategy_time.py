"""How long would a step take under a strategy: compute at a share of the peak, communication as far as it shows.

forward, backward    FLOPs of one rank / (peak x share reached)
DDP, ZeRO            hidden behind backward (gathers of ZeRO-3 behind forward too), except where it takes longer,
                     and except the first gather and the last bucket, which nothing can hide
tensor, expert       shown in full: the next product waits for it
pipeline             (p - 1) / m of the time of its micro-batches on top
optimizer            memory-bound: 28 bytes per weight of this rank with Adam in fp32
"""

from stepscope.cost.models.activations import Batch
from stepscope.cost.models.flops import Transformer, training_flops_per_token
from stepscope.cost.models.layout import Layout, Optimizer, Sharding
from stepscope.cost.models.parameters import on_rank, weights
from stepscope.cost.strategies.time import CollectiveTimes
from stepscope.cost.strategies.traffic import Traffic, strategy_traffic
from stepscope.dataclass import dataclass
from stepscope.units import NS_PER_S


@dataclass(frozen=True)
class Speed:
    """What one device does."""

    peak_flops_per_s: float
    share_reached: float
    """of the peak, by the compute of a step without communication"""
    memory_bytes_per_s: float | None = None

    @property
    def flops_per_s(self) -> float:
        """Return what it computes in a training step."""
        return self.peak_flops_per_s * self.share_reached


@dataclass(frozen=True)
class StepTime:
    """Parts of a predicted step, in ns."""

    forward_ns: float
    backward_ns: float
    recompute_ns: float
    exposed_comm_ns: float
    bubble_ns: float
    optimizer_ns: float
    comm_ns: float
    """all communication, hidden or not"""

    @property
    def total_ns(self) -> float:
        """Return the step."""
        compute = self.forward_ns + self.backward_ns + self.recompute_ns
        return compute + self.exposed_comm_ns + self.bubble_ns + self.optimizer_ns


def step_time(
    model: Transformer,
    batch: Batch,
    layout: Layout,
    *,
    speed: Speed,
    times: CollectiveTimes,
    optimizer: Optimizer = Optimizer.ADAM,
) -> StepTime:
    """Return the predicted step of a job whose every rank takes `layout.micro_batches` of `batch`."""
    flops = training_flops_per_token(model, seq_len=batch.seq_len, recompute=batch.recompute)
    tokens = batch.tokens * layout.micro_batches
    per_flop_ns = NS_PER_S / (speed.flops_per_s * layout.tensor * layout.pipeline)
    forward = flops.model / 3 * tokens * per_flop_ns
    recompute = flops.recomputed * tokens * per_flop_ns
    backward = 2 * forward
    shown, total = _communication(strategy_traffic(model, batch, layout), layout, forward, backward + recompute, times)
    bubble = (forward + backward + recompute) * (layout.pipeline - 1) / layout.micro_batches
    step = _optimizer_ns(model, batch, layout, optimizer, speed)
    return StepTime(forward, backward, recompute, shown, bubble, step, total)


def _communication(
    traffic: list[Traffic], layout: Layout, forward_ns: float, backward_ns: float, times: CollectiveTimes
) -> tuple[float, float]:
    """Return exposed and total time of the traffic."""
    spent: dict[tuple[str, str], float] = {}
    longest: dict[tuple[str, str], float] = {}
    shown = 0.0
    for t in traffic:
        one = times(t.op, t.size_bytes, t.ranks).time_ns
        if t.group != "dp":
            shown += t.count * one
        key = (t.group, t.when)
        spent[key] = spent.get(key, 0.0) + t.count * one
        longest[key] = max(longest.get(key, 0.0), one)
    # Gradients travel in the backward of the last micro-batch only; gathers of ZeRO-3 in each.
    window = backward_ns if layout.sharding is Sharding.ZERO3 else backward_ns / layout.micro_batches
    for when, behind in (("forward", forward_ns), ("backward", window), ("optimizer step", 0.0)):
        own = spent.get(("dp", when), 0.0)
        shown += max(own - behind, min(own, longest.get(("dp", when), 0.0)))
    return shown, sum(spent.values())


def _optimizer_ns(model: Transformer, batch: Batch, layout: Layout, optimizer: Optimizer, speed: Speed) -> float:
    """Return the optimizer step: weight, gradient and moments read, weight and moments written."""
    if speed.memory_bytes_per_s is None:
        return 0.0
    count: float = sum(w.count for w in on_rank(weights(model), layout, layers=model.layers))
    if layout.sharding is not Sharding.DDP:
        count /= layout.data
    values = 3 + 2 * optimizer.moments
    extra = 2 * batch.precision.weight_bytes if batch.precision.master_bytes else 0
    return count * (4 * values + extra) / speed.memory_bytes_per_s * NS_PER_S
