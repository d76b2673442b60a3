"""`stepscope predict memory`: memory by category and moment, the traffic, and whether it fits."""

import argparse
import sys
from typing import Any

from stepscope.cli.arguments.predict.memory import STRATEGIES
from stepscope.cli.arguments.predict.model import RECOMPUTE
from stepscope.cli.predict.answer import is_for_terminal
from stepscope.cli.predict.model import chip_of, device_bytes, model_of
from stepscope.cli.predict.simulated_step import simulated_step
from stepscope.cost.model_memory import CONTEXT_BYTES, Batch, Moment, training_memory
from stepscope.cost.model_shape import Layout, Optimizer, Precision
from stepscope.cost.strategy_cost import Traffic, strategy_traffic
from stepscope.report.terminal import console, plain_table
from stepscope.units import readable_bytes

_PARTS = ("parameters", "gradients", "optimizer", "activations", "temporary")


def run(args: argparse.Namespace) -> int:
    """Return 0 after showing the memory."""
    found = _memory(args)
    if is_for_terminal(args, found):
        _print(found)
    return 0


def _memory(args: argparse.Namespace) -> dict[str, Any]:
    model = model_of(args)
    layout = Layout(args.data, args.tensor, args.pipeline, args.expert, STRATEGIES[args.strategy], args.micro_batches)
    batch = Batch(
        args.micro_batch,
        args.seq_len,
        Precision(args.precision),
        RECOMPUTE[args.recompute],
        fused_attention=not args.plain_attention,
    )
    memory = training_memory(
        model, batch, layout=layout, optimizer=Optimizer(args.optimizer), foreach_optimizer=not args.fused_optimizer
    )
    device = device_bytes(args, chip_of(args))
    return {
        "layout": str(layout),
        "world_size": layout.world_size,
        "peak_bytes": round(memory.peak_bytes),
        "peak_when": memory.peak.when,
        "peak": _parts(memory.peak),
        "outside_allocator_bytes": CONTEXT_BYTES,
        "device_bytes": device and round(device),
        "fits": None if device is None else memory.fits(device),
        "moments": [{"when": m.when, **_parts(m)} for m in memory.moments],
        "collectives": [_row(t) for t in strategy_traffic(model, batch, layout)],
        "simulated": simulated_step(args, model, layout) if args.simulate else None,
    }


def _parts(moment: Moment) -> dict[str, int]:
    return {f"{name}_bytes": round(getattr(moment, name)) for name in _PARTS}


def _row(t: Traffic) -> dict[str, Any]:
    return {"op": t.op, "group": t.group, "ranks": t.ranks, "count": t.count, "bytes": t.size_bytes, "when": t.when}


def _print(found: dict[str, Any]) -> None:
    out = console(sys.stdout)
    out.print(f"{found['layout']}: peak {readable_bytes(found['peak_bytes'])} per device, at {found['peak_when']}")
    table = plain_table(out, "part", "at the peak")
    for name in _PARTS:
        table.add_row(name, readable_bytes(found["peak"][f"{name}_bytes"]))
    out.print(table)
    if found["fits"] is not None:
        room = readable_bytes(found["device_bytes"])
        out.print(f"{'fits' if found['fits'] else 'does not fit'} a device of {room} (5 % and the context kept free)")
    step = found["simulated"]
    if step:
        out.print(
            f"simulated step: peak {readable_bytes(step['peak_bytes'])} in {step['peak_when']}, without library "
            f"workspaces; {sum(c['count'] for c in step['collectives'])} collectives, "
            f"{'as' if step['agrees'] else 'NOT as'} the formulas say; took {step['took_s']:.0f} s"
        )
