"""What a strategy communicates per step: every kind of collective with its group, count and bytes.

Bytes are the full buffer of the operation. With weights of W bytes and gradients of G among N ranks:

    DDP           all-reduce of G in buckets                                   2 (N-1)/N G on each link
    ZeRO-1, -2    reduce-scatter of G, all-gather of W                         as much as DDP
    ZeRO-3        all-gather of W in forward and again in backward, reduce-scatter of G      1.5 times DDP
    tensor        row-parallel layers all-reduce in forward, column-parallel ones in backward
    pipeline      activations forward and their gradients back between stages, per micro-batch
    expert        all-to-all to the experts and back, in forward and in backward
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.contract.operations import bus_factor
from stepscope.cost.calibration import Calibration, load_calibration
from stepscope.errors import UsageError
from stepscope.lab.predict.closed_form import Fabric
from stepscope.lab.predict.model_memory import Batch
from stepscope.lab.predict.model_shape import (
    Layout,
    Recompute,
    Sharding,
    Transformer,
    Weight,
    checked,
    on_rank,
    weights,
)
from stepscope.records import dataclass
from stepscope.units import NS_PER_MS

# of collective times: measured, with an interval, or from links
Source = Calibration | Fabric

BUCKET_BYTES = 25 * 2**20
# DDP's defaults; the first bucket is small so that communication starts early
_FIRST_BUCKET_BYTES = 2**20


@dataclass(frozen=True)
class Traffic:
    """Equal collectives of one rank in one step."""

    op: str
    #: dp, tp, pp or ep
    group: str
    ranks: int
    count: int
    #: full buffer of each
    size_bytes: int
    when: str

    @property
    def sent_bytes(self) -> float:
        return self.count * self.size_bytes * bus_factor(self.op, self.ranks)


def strategy_traffic(model: Transformer, batch: Batch, layout: Layout) -> list[Traffic]:
    """Return what one rank communicates in a step of a transformer."""
    return [
        *_data_traffic(checked(model), batch, layout),
        *_tensor_traffic(model, batch, layout),
        *_pipeline_traffic(model, batch, layout),
        *_expert_traffic(model, batch, layout),
    ]


def ddp_traffic(gradient_bytes: Sequence[int], *, ranks: int, bucket_bytes: int = BUCKET_BYTES) -> list[Traffic]:
    """Return DDP's all-reduces, one per bucket, for gradients in the order of the model's parameters."""
    _at_least_one(ranks)
    if ranks == 1:
        return []
    buckets, filled, limit = [], 0, min(_FIRST_BUCKET_BYTES, bucket_bytes)
    for size in reversed(gradient_bytes):
        filled += size
        if filled >= limit:
            buckets.append(filled)
            filled, limit = 0, bucket_bytes
    if filled:
        buckets.append(filled)
    return _counted(("all_reduce", "dp", ranks, size, "backward") for size in buckets)


def fsdp_traffic(
    unit_bytes: Sequence[int], *, ranks: int, reshard: bool = True, root_stays: bool = True
) -> list[Traffic]:
    """Return FSDP's gathers and scatters for its units, the root's own parameters first.

    `reshard` is ZeRO-3: units are gathered again in backward. With `root_stays` the first of them, the root,
    whose backward comes right after its forward, is not (PyTorch's default). Without `reshard` it is ZeRO-2.
    """
    _at_least_one(ranks)
    if ranks == 1:
        return []
    padded = [_padded(size, ranks) for size in unit_bytes]
    again = padded[1:] if root_stays else padded
    rows = [("all_gather", "dp", ranks, size, "forward") for size in padded]
    rows += [("all_gather", "dp", ranks, size, "backward") for size in again if reshard]
    rows += [("reduce_scatter", "dp", ranks, size, "backward") for size in padded]
    return _counted(rows)


def _zero_traffic(weight_bytes: int, gradient_bytes: int, *, ranks: int) -> list[Traffic]:
    _at_least_one(ranks)
    if ranks == 1:
        return []
    return [
        Traffic("reduce_scatter", "dp", ranks, 1, _padded(gradient_bytes, ranks), "backward"),
        Traffic("all_gather", "dp", ranks, 1, _padded(weight_bytes, ranks), "optimizer step"),
    ]


def _data_traffic(model: Transformer, batch: Batch, layout: Layout) -> list[Traffic]:
    held = on_rank(weights(model), layout, layers=model.layers)
    if layout.expert == 1:
        return _synchronised(held, batch, layout, layout.data)
    own = [w for w in held if w.routed > 1 or w.name.startswith("expert ")]
    shared = [w for w in held if w not in own]
    return [
        *_synchronised(shared, batch, layout, layout.data),
        *_synchronised(own, batch, layout, layout.data // layout.expert),
    ]


def _synchronised(held: Sequence[Weight], batch: Batch, layout: Layout, ranks: int) -> list[Traffic]:
    each = batch.precision.weight_bytes
    if layout.sharding is Sharding.DDP:
        return ddp_traffic([w.rows * w.columns * each for w in held for _ in range(w.routed)], ranks=ranks)
    if layout.sharding is Sharding.ZERO1:
        total = sum(w.count for w in held) * each
        return _zero_traffic(total, total, ranks=ranks)
    units: dict[int | None, int] = {}
    for w in held:
        spread = -(-w.rows // ranks) * ranks  # FSDP gives every rank as many rows
        units[w.layer] = units.get(w.layer, 0) + spread * w.columns * w.routed * each
    reshard = layout.sharding is Sharding.ZERO3
    found = fsdp_traffic(list(units.values()), ranks=ranks, reshard=reshard, root_stays=None in units)
    times = layout.micro_batches if reshard else 1
    return [replace(t, count=t.count * times) if t.op == "all_gather" else t for t in found]


def _tensor_traffic(model: Transformer, batch: Batch, layout: Layout) -> list[Traffic]:
    """Return two all-reduces per layer and direction, and those of the split vocabulary at both ends.

    A recomputed layer repeats the one after attention; PyTorch stops before its last one, whose result is not needed.
    The loss takes three values per token: largest, sum, own.
    """
    if layout.tensor == 1:
        return []
    size = batch.tokens * model.d_model * batch.precision.compute_bytes
    layers = -(-model.layers // layout.pipeline)
    again = layers if batch.recompute in (Recompute.BLOCKS, Recompute.FULL) else 0
    rows = [("forward", 2 * layers + 1, size), ("backward", 2 * layers + again + 1, size)]
    rows.append(("forward", 3, 4 * batch.tokens))
    return [Traffic("all_reduce", "tp", layout.tensor, n * layout.micro_batches, size, when) for when, n, size in rows]


def _pipeline_traffic(model: Transformer, batch: Batch, layout: Layout) -> list[Traffic]:
    if layout.pipeline == 1:
        return []
    size = batch.tokens * model.d_model * batch.precision.residual_bytes
    return [Traffic("send_recv", "pp", 2, layout.micro_batches, size, when) for when in ("forward", "backward")]


def _expert_traffic(model: Transformer, batch: Batch, layout: Layout) -> list[Traffic]:
    if layout.expert == 1 or model.experts is None:
        return []
    size = batch.tokens * model.experts.per_token * model.d_model * batch.precision.compute_bytes
    count = 2 * (-(-(model.layers - model.experts.dense_layers) // layout.pipeline)) * layout.micro_batches
    return [Traffic("all_to_all", "ep", layout.expert, count, size, when) for when in ("forward", "backward")]


def _counted(rows: Iterable[tuple[str, str, int, int, str]]) -> list[Traffic]:
    counts: dict[tuple[str, str, int, int, str], int] = {}
    for row in rows:
        counts[row] = counts.get(row, 0) + 1
    return [Traffic(op, group, ranks, n, size, when) for (op, group, ranks, size, when), n in counts.items()]


def _padded(size_bytes: int, ranks: int) -> int:
    share = 4 * ranks
    return -(-size_bytes // share) * share


def _at_least_one(ranks: int) -> None:
    if ranks < 1:
        raise UsageError(f"the world size has to be at least 1, not {ranks}")


# Estimates for a model at hand.

# of a parameter's name: `layers.3` of `layers.3.mlp.weight`, and `3` of `3.weight` in a Sequential
_LAYER = re.compile(r"^((?:.*?\.)?\d+)\.")
_NO_SOURCE = "no calibration and no links were given; make one with `stepscope calibrate`"
_DISABLED = "the profiler is disabled"


@dataclass(frozen=True)
class CommCost:
    """Communication of one rank per step."""

    world_size: int
    traffic: tuple[Traffic, ...]
    #: of all collectives one after another, before any overlap; None where collective times are unknown
    time_ms: float | None = None
    #: bounds of that time, None where the links were given and not measured
    interval_ms: tuple[float, float] | None = None
    #: why there is no time
    reason: str | None = None

    @property
    def sent_bytes(self) -> float:
        return sum(t.sent_bytes for t in self.traffic)

    @property
    def collectives(self) -> int:
        return sum(t.count for t in self.traffic)


class CommunicationProfiler:
    """Estimates communication from a calibration (or its file) or from a fabric's links.

    Without either it counts bytes and collectives, and times are unknown. With `enabled=False` it estimates nothing, so
    that a training loop can hold one always.
    """

    def __init__(self, source: Calibration | Fabric | str | Path | None = None, *, enabled: bool = True) -> None:
        self._source = load_calibration(source) if isinstance(source, str | Path) else source
        self.enabled = enabled

    def estimate_ddp_comm_cost(self, model: Any, world_size: int, *, bucket_bytes: int = BUCKET_BYTES) -> CommCost:
        """Return the cost of DDP's all-reduces, one per bucket of gradients."""
        sizes = [size for _, size in _trained(model)]
        return self._cost(world_size, ddp_traffic(sizes, ranks=world_size, bucket_bytes=bucket_bytes))

    def estimate_fsdp_comm_cost(
        self, model: Any, world_size: int, *, reshard_after_forward: bool | None = None,
        units: Sequence[int] | None = None,
    ) -> CommCost:  # fmt: skip
        """Return the cost of FSDP2's gathers and scatters, each layer one unit and the rest, the root, another.

        Layers are known by numbers in the names (`layers.3.mlp...`); `units` gives their bytes instead, the root first.
        `reshard_after_forward` as in `fully_shard`: None gathers all units but the root again in backward, True the
        root as well, False none.
        """
        listed, has_root = (list(units), True) if units is not None else _units(model)
        reshard, root_stays = reshard_after_forward is not False, has_root and reshard_after_forward is None
        return self._cost(world_size, fsdp_traffic(listed, ranks=world_size, reshard=reshard, root_stays=root_stays))

    def _cost(self, world_size: int, traffic: list[Traffic]) -> CommCost:
        if not self.enabled:
            return CommCost(world_size, (), reason=_DISABLED)
        if self._source is None:
            return CommCost(world_size, tuple(traffic), reason=_NO_SOURCE)
        each = [self._source.predict(t.op, size_bytes=t.size_bytes, world_size=t.ranks) for t in traffic]
        counted = [(t.count / NS_PER_MS, one) for t, one in zip(traffic, each, strict=True)]
        bounds = [(n * one.low_ns, n * one.high_ns) for n, one in counted if one.low_ns is not None]
        interval = sum(low for low, _ in bounds), sum(high for _, high in bounds)
        time_ms = sum(n * one.time_ns for n, one in counted)
        return CommCost(world_size, tuple(traffic), time_ms, interval if len(bounds) == len(each) else None)


def _trained(model: Any) -> list[tuple[str, int]]:
    if hasattr(model, "named_parameters"):
        named = list(model.named_parameters())
    elif hasattr(model, "parameters"):
        named = [("", p) for p in model.parameters()]
    else:
        raise UsageError(f"the model has to have parameters(); {type(model).__name__} has none")
    found = [(n, int(p.numel()) * int(p.element_size())) for n, p in named if getattr(p, "requires_grad", True)]
    if not found:
        raise UsageError("the model has no parameters that are trained")
    return found


def _units(model: Any) -> tuple[list[int], bool]:
    root, layers = 0, dict[str, int]()
    for name, size in _trained(model):
        layer = _LAYER.match(name)
        if layer is None:
            root += size
        else:
            layers[layer[1]] = layers.get(layer[1], 0) + size
    return [root] * bool(root) + list(layers.values()), bool(root)
