"""A page of any size: an FSDP job with noise on every slice, one slow rank, one rank that stalls on its input."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.cost.calibration import Calibration
from stepscope.lab.predict.calibrate import Point, calibrate
from stepscope.report.html.page import page_data, page_of
from stepscope.report.html.page_data import (
    GROUPS,
    KINDS,
    NO_MATCH,
    Grid,
    Launch,
    MatchedCollectives,
    PageData,
    Slices,
    Timeline,
)
from stepscope.report.html.timeline_data import MAX_RANKS, MAX_SLICES, MAX_SLICES_OF_STEPS, MAX_STEPS

DOCUMENT = Path(__file__).parents[1] / "data" / "report.json"
"""what every such run says; of what each rank says, one rank's"""
SLICES_PER_RANK = 672
KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", "rms_norm_fwd",
    "rms_norm_bwd", "silu_mul_fwd", "rotary_kernel", "split_k_reduce",
)  # fmt: skip
COLLECTIVES = ("ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
LAUNCHES = (
    Launch("aten::mm", "[[2048, 4096], [4096, 4096]]", "layers.3.mlp", "model.py:31", 7),
    Launch("aten::add", None, None, None, 7),
)
STEP_NS = 250e6


def constructed(*, ranks: int, steps: int, slices_per_rank: int = SLICES_PER_RANK) -> PageData:
    """Return the data of a page with the findings, the grid and the slices of such a run."""
    timeline = constructed_timeline(ranks=ranks, steps=steps, slices_per_rank=slices_per_rank)
    return page_data(report(ranks=ranks, steps=steps), timeline, calibration=calibration(ranks))


def constructed_page(*, ranks: int, steps: int, slices_per_rank: int = SLICES_PER_RANK) -> str:
    """Return the text of such a page."""
    return page_of(constructed(ranks=ranks, steps=steps, slices_per_rank=slices_per_rank)).html


def constructed_timeline(*, ranks: int, steps: int, slices_per_rank: int = SLICES_PER_RANK) -> Timeline:
    """Return the grid and the slices."""
    noise = np.random.default_rng(ranks)
    per_rank = min(slices_per_rank, MAX_SLICES // min(ranks, MAX_RANKS))
    slices = _slices(noise, ranks, per_rank)
    others = (MAX_SLICES_OF_STEPS - len(slices)) // len(slices)
    more = [
        replace(_slices(noise, ranks, per_rank), step=101 + k) for k in range(min(others, steps - 1, MAX_STEPS - 1))
    ]
    return Timeline(_grid(noise, ranks, steps), slices, tuple(more))


def _code_trees() -> dict[str, Any]:
    """Return lines three calls deep and modules of eight layers."""
    layers = [
        {"name": f"layers.{k}", "label": f"{k}", "host": 10.0, "device": 20.0 + k, "backward_device": 12.0}
        for k in range(8)
    ]
    forward = {"name": "model.py:31", "label": "forward", "host": 80.0, "device": 188.0, "backward_device": 96.0}
    statistic = {"name": "train.py:43", "label": "step", "host": 120.0, "device": 12.0}
    step = {"name": "train.py:40", "label": "main", "host": 210.0, "device": 200.0, "backward_device": 96.0}
    root = {
        "name": "", "label": "", "host": 212.0, "device": 201.0, "backward_device": 96.0, "comm": 9.0, "exposed": 4.0,
    }  # fmt: skip
    whole = {"name": "layers", "label": "layers", "host": 80.0, "device": 188.0, "backward_device": 96.0}
    return {
        "lines": {**root, "exposed": 4.0, "children": [{**step, "children": [forward, statistic]}]},
        "modules": {**root, "children": [{**whole, "children": layers}]},
    }


def calibration(ranks: int) -> Calibration:
    """Return the calibration of a machine."""
    return calibrate([Point("all_gather", ranks, 2**k, 30e3 + 2**k / 300) for k in range(10, 28)])


def report(*, ranks: int, steps: int) -> dict[str, Any]:
    """Return a report's JSON with something in every field."""
    late = 37 % ranks
    found: dict[str, Any] = json.loads(DOCUMENT.read_text().replace("LATE", str(late)))
    found["run"] |= {"world_size": ranks, "num_ranks": ranks, "num_steps": steps}
    sharding = found["by_strategy"]["sharding"]
    for rows, name in ((found, "ranks"), (found, "devices"), (found, "memory_steps"), (sharding, "ranks")):
        rows[name] = [{"rank": rank, **row} for row in rows[name] for rank in range(ranks)]
    for rank, row in enumerate(found["ranks"]):
        row |= {"host": f"node{rank * 2 // ranks}", "num_steps": steps}
    for row in found["devices"][1:2]:
        row |= {"sm_clock_mhz": 1410.0, "throttled_pct": 48.0, "throttle_reasons": {"hw_thermal_slowdown": 48.0}}
    for rank, row in enumerate(found["memory_steps"]):
        row["allocated_bytes"] = [row["allocated_bytes"][0] + rank, *row["allocated_bytes"][1:]]
    for row in found["collectives"]:
        row |= {"group_size": ranks, "late_rank": late}
    for row in (*found["critical_path"], *found["stragglers"]):
        row["rank"] = late
    found["findings"][0]["ranks"] = [late]
    return {**found, "details": _details(ranks, steps)}


def _details(ranks: int, steps: int) -> dict[str, Any]:
    noise = np.random.default_rng(steps)
    blocks = min(ranks, 64)
    first = [k * ranks // blocks for k in range(blocks)]
    number = sorted({k * steps // min(steps, 600) for k in range(min(steps, 600))})
    times = np.round(250 * (1 + 0.02 * noise.standard_normal((4, len(number)))), 3)
    count = noise.integers(1, 99, 16).astype(float).tolist()
    return {
        "run_steps": {
            "source": "step logs", "num_steps": steps, "num_ranks": ranks, "step": number,
            **{f"{name}_ms": times[k].tolist() for k, name in enumerate(("min", "median", "max"))},
            "slowest_rank": [37 % ranks] * len(number), "profiled": [s >= 3 * steps // 4 for s in number],
            "marks": {str(number[len(number) // 2]): "checkpoint"}, "outliers": [number[1]],
            "ranks": [{"rank": r, "ms": times[3].tolist()} for r in range(min(ranks, 6))],
        },
        "kernels": {
            "from_us": [0.0, *(2.0 * 2**k for k in range(15))],
            "families": [{"family": f, "count": count, "ms": count} for f in ("gemm", "attention", "other")],
            "queue_at_least": [0, 1, 2, 4, 8], "queue_pct": [20.0] * 5, "queue_median": 90.0,
        },
        "rank_matrix": {
            "blocks": [[a, b - 1] for a, b in zip(first, [*first[1:], ranks], strict=True)],
            "waited_ms": noise.uniform(0, 5, (blocks, blocks)).round(4).tolist(),
            "message_bytes": np.zeros((blocks, blocks)).tolist(),
            "ring_bytes": (np.roll(np.eye(blocks), 1, axis=1) * 1e8).tolist(),
        },
        "pipeline_step": None,
        "what_if": _what_if(),
        "code_trees": _code_trees(),
        "training_lines": ["train.py:40", "model.py:31"],
        "chip": {"name": "H100", "tflops": {"bf16": 989.0}, "memory_gb_per_s": 3350.0},
    }  # fmt: skip


def _what_if() -> dict[str, Any]:
    """Return a step of 261 ms with three fixes."""
    savings: dict[tuple[int, ...], float] = {(): 0.0, (0,): 23.3, (1,): 12.0, (2,): 6.0}
    states = [
        {"fixes": list(fixes), "saving_ms": ms, "path": {"kernel": 0.8 * (261 - ms), "host": 0.2 * (261 - ms)}}
        for fixes, ms in savings.items()
    ]
    return {"step_ms": 261.0, "findings": [0, 1, 2], "states": states}


def _grid(noise: np.random.Generator, ranks: int, steps: int) -> Grid:
    group_ns = np.zeros((len(GROUPS), ranks, steps))
    own = 0.85 * STEP_NS * (1 + 0.01 * noise.standard_normal((ranks, steps)))
    own[37 % ranks, steps // 3 :] *= 1.11
    stall = np.zeros((ranks, steps))
    stall[12 % ranks, ::10] = 0.4 * STEP_NS
    wait = (own + stall).max(axis=0) - own - stall
    transfer = 0.1 * STEP_NS * (1 + 0.05 * noise.standard_normal((ranks, steps)))
    for name, values in (("compute", own), ("input", stall), ("wait", wait), ("transfer", transfer)):
        group_ns[GROUPS.index(name)] = values
    return Grid(tuple(range(ranks)), tuple(range(100, 100 + steps)), group_ns)


def _slices(noise: np.random.Generator, ranks: int, per_rank: int) -> Slices:
    """Return the slices: two in three compute, the rest collectives of all ranks, each waiting for the last."""
    drawn = min(ranks, MAX_RANKS)
    num_comm = per_rank // 3
    num = per_rank - num_comm
    lengths = noise.lognormal(0, 0.8, (drawn, num))
    start = (np.cumsum(lengths, axis=1) - lengths) / lengths.sum(axis=1, keepdims=True) * 0.9 * STEP_NS
    dur = lengths * 0.85 * STEP_NS / lengths.sum(axis=1, keepdims=True)
    begin = np.linspace(0.02, 0.95, num_comm) * STEP_NS + noise.uniform(0, 0.5e6, (drawn, num_comm))
    last = begin.max(axis=0)
    end = last + noise.uniform(0.3e6, 0.7e6, num_comm)
    kinds = np.where(np.arange(num) < num // 3, KINDS.index("forward"), KINDS.index("backward"))
    each = [np.tile(np.concatenate(pair), drawn) for pair in (
        (kinds, np.full(num_comm, KINDS.index("transfer"))),
        (noise.integers(0, len(KERNELS), num), len(KERNELS) + noise.integers(0, 2, num_comm)),
        (np.full(num, NO_MATCH), np.arange(num_comm)),
    )]  # fmt: skip
    launched = np.where(each[2] < 0, each[1] % len(LAUNCHES), NO_MATCH)
    idle = np.arange(drawn) * per_rank + num // 2  # one kernel of each rank gives its place to a stall
    kind, name = each[0].astype(np.uint8), each[1].copy()
    kind[idle], name[idle], launched[idle] = KINDS.index("idle"), len(KERNELS) + len(COLLECTIVES), NO_MATCH
    return Slices(
        step=100, ranks=tuple(np.linspace(0, ranks - 1, drawn).round().astype(int).tolist()), span_ns=int(STEP_NS),
        rank=np.repeat(np.arange(drawn), per_rank), kind=kind,
        start_ns=np.hstack((start, begin)).reshape(-1).astype(np.int64),
        dur_ns=np.hstack((dur, end - begin)).reshape(-1).astype(np.int64),
        wait_ns=np.hstack((np.zeros_like(dur), last - begin)).reshape(-1).astype(np.int64), name=name, match=each[2],
        launch=launched, delay_ns=np.where(launched < 0, -1, noise.integers(7_000, 9_000_000, len(launched))),
        names=(*KERNELS, *COLLECTIVES, "host: train.py:42"), launches=LAUNCHES,
        matched=MatchedCollectives(("all_gather · fsdp · 218.0 MB",) * num_comm, begin.argmax(axis=0)),
    )  # fmt: skip
