"""`stepscope predict strategy`: the candidates, with the time of each and what was assumed."""

import argparse
import sys
from typing import Any

from stepscope.cli.predict.answer import is_for_terminal
from stepscope.cli.predict.collective import fabric
from stepscope.cli.predict.model import chip_of, device_bytes, model_of
from stepscope.cost.calibration import Calibration, load_calibration
from stepscope.cost.chips import Chip, mfu_peak
from stepscope.cost.closed_form import Fabric, Link
from stepscope.cost.model_shape import Optimizer, Precision
from stepscope.cost.strategy_cost import CollectiveTimes, times_of
from stepscope.errors import UsageError
from stepscope.predict.strategy import TYPICAL_RANGE, Advice, Candidate, Question, Speed, advise, time_band
from stepscope.report.html.sheets import layout_name
from stepscope.report.terminal import console, plain_table, print_fitting
from stepscope.units import ms, readable_bytes

_TYPICAL_EFFICIENCY = 0.5
_NODE_LATENCY_NS, _LATENCY_NS, _GB_PER_S = 3_000.0, 8_000.0, 50.0
_MAX_SHOWN = 12


def run(args: argparse.Namespace) -> int:
    """Return 0 after showing the candidates."""
    question, times, assumed = _question(args)
    given = args.efficiency
    shares = (0.9 * given, min(1.0, 1.1 * given)) if given else TYPICAL_RANGE
    advice = advise(question, times=times, shares=shares)
    found = _json(question, advice, times, shares, assumed)
    if is_for_terminal(args, found):
        _print(found)
    return 0


def _question(args: argparse.Namespace) -> tuple[Question, CollectiveTimes, list[str]]:
    chip, assumed = chip_of(args), []
    memory = device_bytes(args, chip)
    peak = args.peak_tflops * 1e12 if args.peak_tflops else _peak(chip)
    if memory is None or peak is None:
        raise UsageError("the device is not known; give --device NAME, or --memory-gib and --peak-tflops")
    if args.efficiency is None:
        assumed.append(f"compute reaches {_TYPICAL_EFFICIENCY:.0%} of the peak (35 % to 65 %); --efficiency sets it")
    elif args.efficiency > 1:
        raise UsageError(f"--efficiency has to be between 0 and 1, not {args.efficiency}")
    bandwidth = chip.memory_gb_per_s * 1e9 if chip and chip.memory_gb_per_s else None
    speed = Speed(peak, args.efficiency or _TYPICAL_EFFICIENCY, bandwidth)
    question = Question(
        model_of(args), args.seq_len, args.sequences, args.world_size, memory, speed,
        Precision(args.precision), Optimizer(args.optimizer), args.per_node,
    )  # fmt: skip
    return question, times_of(_links(args, chip, assumed)), assumed


def _peak(chip: Chip | None) -> float | None:
    found = mfu_peak(chip) if chip else None
    return found.flops_per_s if found else None


def _links(args: argparse.Namespace, chip: Chip | None, assumed: list[str]) -> Calibration | Fabric:
    if args.calibration:
        return load_calibration(args.calibration)
    given = fabric(args)
    if given is not None and (given.outer is not None or args.world_size <= args.per_node):
        return given
    outer = args.link or Link(_LATENCY_NS, 1 / _GB_PER_S)
    if args.link is None and args.world_size > args.per_node:
        assumed.append(f"{_GB_PER_S:.0f} GB/s per device between nodes; --link sets it")
    if chip is None or chip.link_gb_per_s is None:
        return Fabric(outer)
    assumed.append(f"{chip.link or 'link'} of {chip.link_gb_per_s:g} GB/s inside a node; --node-link sets it")
    return Fabric(Link(_NODE_LATENCY_NS, 1 / chip.link_gb_per_s), outer, args.per_node)


def _json(
    question: Question, advice: Advice, times: CollectiveTimes, shares: tuple[float, float], assumed: list[str]
) -> dict[str, Any]:
    def row(c: Candidate) -> dict[str, Any]:
        low, high = time_band(question, c, shares=shares, times=times)
        return {**_row(c), "low_ms": ms(low), "high_ms": ms(high)}

    shown = advice.candidates[:_MAX_SHOWN]
    others = [c for c in (advice.fastest, *advice.close) if c is not advice.recommended]
    return {
        "recommended": row(advice.recommended),
        "fastest": row(advice.fastest),
        "no_difference": advice.recommended is not advice.fastest,
        "reason": advice.reason,
        "test_also": [row(c) for c in others],
        "simple_rule": {"rule": "DDP if it fits, else ZeRO-3", **row(advice.by_rule)},
        "candidates": [row(c) for c in shown],
        "not_fitting": [_row(c) for c in advice.not_fitting],
        "assumed": assumed,
    }


def _row(c: Candidate) -> dict[str, Any]:
    t = c.time
    return {
        "strategy": c.layout.sharding.value if c.layout.data > 1 else "none",
        "data": c.layout.data,
        "tensor": c.layout.tensor,
        "pipeline": c.layout.pipeline,
        "micro_batch": c.batch.micro_batch,
        "micro_batches": c.layout.micro_batches,
        "recompute": c.batch.recompute.name.lower(),
        "fits": c.fits,
        "memory_bytes": round(c.memory.peak_bytes),
        "step_ms": ms(t.total_ns),
        "mfu": c.mfu and round(c.mfu, 4),
        "exposed_comm_ms": ms(t.exposed_comm_ns),
        "comm_ms": ms(t.comm_ns),
        "bubble_ms": ms(t.bubble_ns),
        "recompute_ms": ms(t.recompute_ns),
        "optimizer_ms": ms(t.optimizer_ns),
    }


def _print(found: dict[str, Any]) -> None:
    out = console(sys.stdout)
    table = plain_table(out, "strategy", "micro-batch", "memory", "step ms", "between", "exposed comm", "MFU")
    for row in found["candidates"]:
        table.add_row(*_cells(row))
    print_fitting(table, out, least_needed=("exposed comm", "micro-batch", "between"))
    best, rule = found["recommended"], found["simple_rule"]
    out.print(f"recommended: {layout_name(best)}, {best['step_ms']:.0f} ms per step ({found['reason']})")
    out.print(f"simple rule (DDP if it fits, else ZeRO-3): {layout_name(rule)}, {rule['step_ms']:.0f} ms per step")
    if found["test_also"]:
        out.print(f"too close to call, measure both: {', '.join(layout_name(r) for r in found['test_also'])}")
    for line in found["assumed"]:
        out.print(f"assumed: {line}")


def _cells(row: dict[str, Any]) -> list[str]:
    mfu = "?" if row["mfu"] is None else f"{100 * row['mfu']:.1f} %"
    return [
        layout_name(row),
        f"{row['micro_batch']} x {row['micro_batches']}",
        readable_bytes(row["memory_bytes"]),
        f"{row['step_ms']:.0f}",
        f"{row['low_ms']:.0f} - {row['high_ms']:.0f}",
        f"{row['exposed_comm_ms']:.0f} ms",
        mfu,
    ]
