"""Which strategy for this model on these devices: what fits, what is fastest, and why.

The simple rule (DDP if it fits, else shard) is one of the answers and named as such. Every layout that the devices
allow is a candidate; for each the largest micro-batch that fits is taken.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepscope.errors import UsageError
from stepscope.lab.predict.model_memory import Batch, Memory, training_memory
from stepscope.lab.predict.model_shape import (
    Layout,
    Optimizer,
    Precision,
    Recompute,
    Sharding,
    Transformer,
    checked,
    on_rank,
    parameters,
    training_flops_per_token,
    utilisation,
    weights,
)
from stepscope.lab.predict.strategy_cost import Source, Traffic, strategy_traffic
from stepscope.records import Row, dataclass
from stepscope.units import NS_PER_S, readable_bytes

# How long would a step take under a strategy: compute at a share of the peak, communication as far as it shows.
#
# forward, backward    FLOPs of one rank / (peak x share reached)
# DDP, ZeRO            hidden behind backward (gathers of ZeRO-3 behind forward too), except where it takes longer,
#                      and except the first gather and the last bucket, which nothing can hide
# tensor, expert       shown in full: the next product waits for it
# pipeline             (p - 1) / m of the time of its micro-batches on top
# optimizer            memory-bound: 28 bytes per weight of this rank with Adam in fp32


@dataclass(frozen=True)
class Speed:
    """What one device does."""

    peak_flops_per_s: float
    #: of the peak, by the compute of a step without communication
    share_reached: float
    memory_bytes_per_s: float | None = None

    @property
    def flops_per_s(self) -> float:
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
    #: all communication, hidden or not
    comm_ns: float

    @property
    def total_ns(self) -> float:
        compute = self.forward_ns + self.backward_ns + self.recompute_ns
        return compute + self.exposed_comm_ns + self.bubble_ns + self.optimizer_ns


def step_time(
    model: Transformer,
    batch: Batch,
    layout: Layout,
    *,
    speed: Speed,
    source: Source,
    optimizer: Optimizer = Optimizer.ADAM,
) -> StepTime:
    """Return the predicted step of a job whose every rank takes `layout.micro_batches` of `batch`."""
    flops = training_flops_per_token(model, seq_len=batch.seq_len, recompute=batch.recompute)
    tokens = batch.tokens * layout.micro_batches
    per_flop_ns = NS_PER_S / (speed.flops_per_s * layout.tensor * layout.pipeline)
    forward = flops["model"] / 3 * tokens * per_flop_ns
    recompute = flops["recomputed"] * tokens * per_flop_ns
    backward = 2 * forward
    shown, total = _communication(strategy_traffic(model, batch, layout), layout, forward, backward + recompute, source)
    bubble = (forward + backward + recompute) * (layout.pipeline - 1) / layout.micro_batches
    step = _optimizer_ns(model, batch, layout, optimizer, speed)
    return StepTime(forward, backward, recompute, shown, bubble, step, total)


def _communication(
    traffic: list[Traffic], layout: Layout, forward_ns: float, backward_ns: float, source: Source
) -> tuple[float, float]:
    spent: dict[tuple[str, str], float] = {}
    longest: dict[tuple[str, str], float] = {}
    shown = 0.0
    for t in traffic:
        one = source.predict(t.op, size_bytes=t.size_bytes, world_size=t.ranks).time_ns
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
    if speed.memory_bytes_per_s is None:
        return 0.0
    count: float = sum(w.count for w in on_rank(weights(model), layout, layers=model.layers))
    if layout.sharding is not Sharding.DDP:
        count /= layout.data
    values = 3 + 2 * optimizer.moments
    extra = 2 * batch.precision.weight_bytes if batch.precision.master_bytes else 0
    return count * (4 * values + extra) / speed.memory_bytes_per_s * NS_PER_S


# candidates within this factor of the fastest are too close to call: test them
_CLOSE = 1.1
# shares of the peak that the compute of training usually reaches
TYPICAL_RANGE = (0.35, 0.65)
_TENSOR = (1, 2, 4, 8)
_PIPELINE = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Question:
    """Model, data and hardware of a training."""

    model: Transformer
    seq_len: int
    #: of the whole job per step
    sequences: int
    devices: int
    device_bytes: float
    speed: Speed
    precision: Precision = Precision.MIXED
    optimizer: Optimizer = Optimizer.ADAM
    per_node: int = 8


@dataclass(frozen=True)
class Candidate:
    """One way to train it."""

    layout: Layout
    batch: Batch
    memory: Memory
    time: StepTime
    mfu: float | None
    fits: bool

    def __str__(self) -> str:
        again = ", checkpointed" if self.batch.recompute is not Recompute.NONE else ""
        accumulated = f" x {self.layout.micro_batches}" if self.layout.micro_batches > 1 else ""
        return f"{self.layout}, micro-batch {self.batch.micro_batch}{accumulated}{again}"


def advise(question: Question, *, source: Source, shares: tuple[float, float] = TYPICAL_RANGE) -> Row:
    """Return what fits, what is fastest and what to take; an error where nothing fits.

    Steps whose times overlap, if compute reaches between these shares of the peak, and that are within a tenth of each
    other are no different: the simpler one is taken, DDP before ZeRO-1 before ZeRO-2.
    """
    _check(question)
    found = list(_candidates(question, source))
    fitting = sorted((c for c in found if c.fits), key=lambda c: c.time.total_ns)
    failing = [c for c in found if not c.fits]
    if not fitting:
        raise UsageError(_nothing_fits(question, failing))
    rule = _by_rule(fitting)
    best = fitting[0]
    close = tuple(c for c in _different(fitting[1:], best) if c.time.total_ns <= _CLOSE * best.time.total_ns)[:3]
    same = [c for c in fitting if c.time.total_ns <= _CLOSE * best.time.total_ns]
    bands = [time_band(question, c, shares=shares, source=source) for c in same]
    chosen = min((c for c, (low, _) in zip(same, bands, strict=True) if low <= bands[0][1]), key=_effort)
    reason = _reason(best, rule, fitting, failing, chosen=chosen)
    if chosen is not best:
        reason = f"as fast as {best.layout} within the error, and simpler; {reason}"
    return Row(
        fastest=best,
        # others within a tenth of it: measure both
        close=close,
        # the simplest of those that do not differ significantly from the fastest
        recommended=chosen,
        # DDP if it fits, else ZeRO-3
        by_rule=rule,
        candidates=fitting,
        # DDP and the others that do not, with the least that they would need
        not_fitting=failing,
        reason=reason,
    )


def time_band(
    question: Question, candidate: Candidate, *, shares: tuple[float, float], source: Source
) -> tuple[float, float]:
    """Return the shortest and longest step, in ns, if the compute reaches between these shares of the peak."""
    low, high = (
        step_time(
            question.model,
            candidate.batch,
            candidate.layout,
            speed=replace(question.speed, share_reached=share),
            source=source,
            optimizer=question.optimizer,
        ).total_ns
        for share in (max(shares), min(shares))
    )
    return low, high


def _check(q: Question) -> None:
    checked(q.model)
    for what, value in (
        ("the number of devices", q.devices),
        ("the sequence length", q.seq_len),
        ("the global batch", q.sequences),
    ):
        if value < 1:
            raise UsageError(f"{what} has to be at least 1, not {value}")
    if q.device_bytes <= 0:
        raise UsageError(f"device memory has to be above 0, not {q.device_bytes:g} bytes")


def _candidates(q: Question, source: Source) -> Iterator[Candidate]:
    for layout in _layouts(q):
        for recompute in (Recompute.NONE, Recompute.BLOCKS):
            candidate = _largest_batch(q, layout, recompute, source)
            if candidate is not None:
                yield candidate


def _layouts(q: Question) -> Iterator[Layout]:
    for tensor in _TENSOR:
        for pipeline in _PIPELINE:
            data, rest = divmod(q.devices, tensor * pipeline)
            possible = not rest and tensor <= q.per_node and not q.model.heads % tensor
            if not possible or q.model.layers % pipeline or q.sequences % data:
                continue
            kinds = tuple(Sharding) if data > 1 else (Sharding.DDP,)
            if pipeline > 1:  # sharded weights would be gathered again for every micro-batch
                kinds = kinds[:2]
            for sharding in kinds:
                yield Layout(data=data, tensor=tensor, pipeline=pipeline, sharding=sharding)


def _largest_batch(q: Question, layout: Layout, recompute: Recompute, source: Source) -> Candidate | None:
    share = q.sequences // layout.data
    sizes = [n for n in _powers_down(share) if not share % n and share // n >= layout.pipeline]
    candidate = None
    for size in sizes:
        spread = replace(layout, micro_batches=share // size)
        batch = Batch(size, q.seq_len, q.precision, recompute)
        memory = training_memory(q.model, batch, layout=spread, optimizer=q.optimizer)
        candidate = (spread, batch, memory)
        if memory.fits(q.device_bytes):
            break
    return _timed(q, *candidate, source) if candidate else None


def _timed(q: Question, layout: Layout, batch: Batch, memory: Memory, source: Source) -> Candidate:
    time = step_time(q.model, batch, layout, speed=q.speed, source=source, optimizer=q.optimizer)
    flops = training_flops_per_token(q.model, seq_len=q.seq_len)["model"] * q.seq_len * q.sequences
    peak = q.speed.peak_flops_per_s
    mfu = utilisation(flops_per_step=flops, step_s=time.total_ns / 1e9, peak_flops_per_s=peak, devices=q.devices)
    return Candidate(layout, batch, memory, time, mfu, memory.fits(q.device_bytes))


def _by_rule(fitting: Sequence[Candidate]) -> Candidate:
    order = (Sharding.DDP, Sharding.ZERO3, Sharding.ZERO2, Sharding.ZERO1)
    return min(fitting, key=lambda c: _effort(c, order)[:3])


def _effort(c: Candidate, order: Sequence[Sharding] = tuple(Sharding)) -> tuple[int, int, bool, float]:
    split = c.layout.tensor * c.layout.pipeline
    return split, order.index(c.layout.sharding), c.batch.recompute is not Recompute.NONE, c.time.total_ns


def _different(others: Sequence[Candidate], best: Candidate) -> list[Candidate]:
    seen = {_kind(best)}
    out = []
    for c in others:
        if _kind(c) not in seen:
            seen.add(_kind(c))
            out.append(c)
    return out


def _kind(c: Candidate) -> tuple[Sharding, int, int]:
    return c.layout.sharding, c.layout.tensor, c.layout.pipeline


def _reason(
    best: Candidate, rule: Candidate, fitting: Sequence[Candidate], failing: Sequence[Candidate], *, chosen: Candidate
) -> str:
    ddp = [c for c in failing if c.layout.sharding is Sharding.DDP and c.layout.tensor * c.layout.pipeline == 1]
    plain = any(c.layout.sharding is Sharding.DDP and c.layout.tensor * c.layout.pipeline == 1 for c in fitting)
    parts = []
    if ddp and not plain:
        least = min(c.memory.peak_bytes for c in ddp)
        parts.append(f"plain DDP needs {readable_bytes(least)} per device and does not fit")
    elif plain:
        parts.append("plain DDP fits")
    hidden = 1 - best.time.exposed_comm_ns / best.time.comm_ns if best.time.comm_ns else 1.0
    parts.append(f"{best.layout} hides {100 * hidden:.0f} % of its communication")
    slower = 100 * (rule.time.total_ns / best.time.total_ns - 1)
    if slower >= 0.5 and _kind(rule) != _kind(chosen):
        parts.append(f"the simple rule's choice ({rule.layout}) takes {slower:.0f} % longer")
    return "; ".join(parts)


def _nothing_fits(q: Question, failing: Sequence[Candidate]) -> str:
    if not failing:
        return (
            f"no layout divides {q.devices} devices and {q.sequences} sequences; "
            "choose a global batch that is a multiple of the devices"
        )
    least = min(failing, key=lambda c: c.memory.peak_bytes)
    total = parameters(q.model).total
    return (
        f"{total / 1e9:.1f} B parameters fit {q.devices} devices of {readable_bytes(q.device_bytes)} in no way: "
        f"the least is {least} with {readable_bytes(least.memory.peak_bytes)} per device; use more devices or offload"
    )


def _powers_down(most: int) -> list[int]:
    return [2**k for k in range(most.bit_length() - 1, -1, -1) if 2**k <= most]
