"""A page of any size: an FSDP job with noise on every slice, one slow rank, one rank that stalls on its input."""

from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.cost.calibration import Calibration
from stepscope.lab.predict.calibrate import calibrate
from stepscope.lab.predict.measured_collectives import Point
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

SLICES_PER_RANK = 672
KERNELS = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off_kernel",
    "flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4>>",
    "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>",
    "rms_norm_fwd",
    "rms_norm_bwd",
    "silu_mul_fwd",
    "rotary_kernel",
    "split_k_reduce",
)
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
        "name": "",
        "label": "",
        "host": 212.0,
        "device": 201.0,
        "backward_device": 96.0,
        "comm": 9.0,
        "exposed": 4.0,
    }
    whole = {"name": "layers", "label": "layers", "host": 80.0, "device": 188.0, "backward_device": 96.0}
    return {
        "lines": {**root, "exposed": 4.0, "children": [{**step, "children": [forward, statistic]}]},
        "modules": {**root, "children": [{**whole, "children": layers}]},
    }


def _code() -> dict[str, Any]:
    row = {
        "line_to": 40, "function": "main", "module": None, "device_ms": 200.0, "host_ms": 210.0, "blocked_ms": 3.0,
        "comm_ms": 9.0, "exposed_ms": 4.0, "backward_device_ms": 96.0, "step_pct": 99.0, "saving_ms": None, "mfu": 0.4,
    }  # fmt: skip
    module = {**row, "module": "layers", "device_ms": 188.0, "step_pct": 70.0}
    return {
        "code": [
            {**row, "file": "train.py", "line": 40, "source": "for x in data: step(x)"},
            {**row, "file": "model.py", "line": 31, "line_to": 33, "source": "x = x + self.up(x)", "module": "layers",
             "saving_ms": 140.0},
            {**row, "file": "train.py", "line": 43, "line_to": 43, "source": None, "saving_ms": 90.0, "step_pct": 45.0},
        ],
        "modules": [module],
        "unowned": {"host_pct": 0.9, "device_pct": 0.5, "host_ms": 2.0, "device_ms": 1.0, "comm_ms": 0.0},
    }  # fmt: skip


def calibration(ranks: int) -> Calibration:
    """Return the calibration of a machine."""
    return calibrate([Point("all_gather", ranks, 2**k, 30e3 + 2**k / 300) for k in range(10, 28)])


def report(*, ranks: int, steps: int) -> dict[str, Any]:
    """Return a report's JSON with something in every field."""
    rank = {
        "host": "node0",
        "num_events": 90_000,
        "num_steps": steps,
        "window_ms": 12_500.0,
        "overlap_pct": 71.0,
        "compute_ms": 9000.0,
    }
    parts = (
        ("forward", 24),
        ("backward", 46),
        ("exposed_transfer", 9),
        ("wait", 9),
        ("launch_gap", 2),
        ("unknown", 10),
    )
    losses = (
        ("wait_for_stragglers", 9),
        ("exposed_transfer", 9),
        ("non_matmul_kernels", 14),
        ("matmul_below_peak", 26),
    )
    return {
        "schema": 1,
        "run": {
            "name": "llama-8b",
            "world_size": ranks,
            "num_ranks": ranks,
            "num_steps": steps,
            "device": "NVIDIA H100",
            "backend": "nccl",
            "strategy": "fsdp",
            "torch": "2.9.0",
            "sources": [],
        },
        "ranks": [
            {"rank": r, **rank, "host": f"node{r * 2 // ranks}", "clock_uncertainty_us": 18.0} for r in range(ranks)
        ],
        "step": {
            "profiled_ms": 267.0,
            "unprofiled_ms": 261.0,
            "profiler_overhead_pct": 2.3,
            "overlap_efficiency": 0.8,
            "tokens_per_s": 9000.0,
            "samples_per_s": None,
            "budget": [{"part": p, "ms_per_step": 2.61 * pct, "pct": float(pct)} for p, pct in parts],
        },
        "efficiency": {
            "mfu": 0.42,
            "peak_tflops": 989.0,
            "precision": "bf16",
            "peak_precision": "bf16",
            "flops_source": "recorded shapes",
        },
        "waterfall": [
            {"loss": name, "pct_of_peak": float(pct), "ms_per_step": 2.6 * pct, "plus_minus": 0.5}
            for name, pct in losses
        ]
        + [{"loss": "achieved", "pct_of_peak": 42.0, "ms_per_step": 110.0, "plus_minus": 0.5}],
        "collectives": [
            {
                "op": op,
                "group": "fsdp",
                "group_size": ranks,
                "count": 64,
                "bytes": 218_000_000,
                "wait_ms": 8.9,
                "transfer_ms": 46.1,
                "exposed_ms": 9.0,
                "busbw_gb_per_s": 330.4,
                "live_busbw_gb_per_s": 311.7,
                "late_rank": 37 % ranks,
            }
            for op in ("all_gather", "reduce_scatter")
        ],
        "kernels": [
            {
                "name": k,
                "family": "gemm",
                "count": 64.0,
                "total_ms": 40.0 - i,
                "mean_ms": 0.4,
                "share": 0.1,
                "bound": "compute-bound",
                "precision": "bf16",
                "tflops": 300.0 + i,
                "gb_per_s": 900.0,
                "measured_share": 0.0,
                "step_ms": 40.0 - i,
                "count_per_step": 64.0,
            }
            for i, k in enumerate(KERNELS)
        ],
        "operators": [
            {
                "name": "aten::mm",
                "shapes": "[[2048, 4096]]",
                "calls": 64.0,
                "host_self_ms": 9.0,
                "host_total_ms": 9.0,
                "device_self_ms": 90.0,
                "device_total_ms": 90.0,
            }
        ],
        **_code(),
        "idle": [{"cause": "launch", "ms_per_step": 4.0}],
        "critical_path": [{"rank": 37 % ranks, "what": "kernel", "name": KERNELS[0], "ms_per_step": 90.0, "pct": 34.0}],
        "checks": [
            {
                "id": "device_utilisation_pct",
                "value": 91.0,
                "good": "> 80",
                "bad": "< 50",
                "status": "pass",
                "reason": "busy",
            }
        ],
        "stragglers": [{"rank": 37 % ranks, "cause": "device"}],
        "memory": {
            "ranks": [
                {
                    "rank": 0,
                    "peak_allocated_bytes": 71_000_000_000,
                    "device_total_bytes": 80_000_000_000,
                    "timeline": _memory(),
                    "peak": None,
                }
            ],
            "fullest_rank": 0,
        },
        "devices": [
            {
                "rank": r,
                "device": "NVIDIA H200",
                "num_samples": 60,
                "sm_clock_mhz": 1410.0 if r == 1 else 1980.0,
                "max_sm_clock_mhz": 1980.0,
                "power_w": 640.0,
                "power_limit_w": 700.0,
                "temperature_c": 71.0,
                "utilization_pct": 93.0,
                "throttled_pct": 48.0 if r == 1 else 0.0,
                "throttle_reasons": {"hw_thermal_slowdown": 48.0} if r == 1 else {},
                "others_bytes": None,
            }
            for r in range(ranks)
        ],
        "nccl": [
            {
                **dict.fromkeys(("host", "num_ranks", "num_nodes", "local_ranks", "num_rings")),
                **dict.fromkeys(("max_bw_gb_per_s", "total_bw_gb_per_s")),
                **{name: [] for name in ("warnings", "interfaces", "communicators", "choices", "collectives")},
                "rank": 0,
                "version": "2.28.9",
                "channels": 16,
                "transports": {"P2P/CUMEM": 14, "NET/IB": 2},
                "network": "IB",
                "links": {},
                "infiniband_missing": False,
                "settings": {},
                "num_lines": 0,
            }
        ],
        "memory_edges": [],
        "memory_steps": [
            {
                "rank": r,
                "step": [0, 10, 20, 30],
                "allocated_bytes": [60_000_000_000 + r, 71_000_000_000, 70_000_000_000, 71_000_000_000],
                "reserved_bytes": [62_000_000_000, 74_000_000_000, 74_000_000_000, None],
                "host_bytes": [4_000_000_000] * 4,
            }
            for r in range(ranks)
        ],
        "by_strategy": {
            "name": "fsdp",
            "sure": "stated",
            "sharding": {
                "stage": "zero3",
                "ranks": [
                    {
                        "rank": r,
                        "gathers_of_parameters": 2.0,
                        "traffic_of_parameters": 3.0,
                        "gathered_bytes": 5e7,
                        "gather_ms": 18.0,
                        "gather_exposed_ms": 9.0,
                        "gather_wait_ms": 4.0,
                        "early_pct": 40.0,
                        "scattered_bytes": 2.5e7,
                        "scatter_ms": 8.0,
                        "scatter_exposed_ms": 6.0,
                        "scatter_wait_ms": 1.0,
                    }
                    for r in range(ranks)
                ],
            },
            "buckets": {
                "buckets": [
                    {"order": 0, "size_bytes": None, "ready_ms": 2.0, "time_ms": 4.0, "wait_ms": 1.0, "exposed_ms": 1.0}
                ]
            },
            "pipeline": {
                "stages": 2,
                "microbatches": 4,
                "schedule": "1f1b",
                "bubble_pct": 21.0,
                "textbook_pct": 20.0,
                "schedule_pct": 20.0,
                "ranks": [
                    {"rank": r, "stage": r, "bubble_pct": 21.0, "forward_ms": 9.0, "backward_ms": 18.0, "wait_ms": 5.0}
                    | dict.fromkeys(("other_ms", "transfer_ms", "gaps_ms", "idle_ms"), 1.0)
                    for r in (0, 1)
                ],
            },
        },
        "verdict": "compute-bound",
        "verdict_reason": "compute takes 62 % of the step; no fix saves 10 %",
        "not_examined": [{"rule": "memory-pressure", "needs": "memory: stepscope record --memory"}],
        "not_judged": ["No rule judges a line that only this job has: stepscope code shows what each line costs."],
        "findings": [
            {
                "id": "straggler",
                "title": f"Rank {37 % ranks} is late (host)",
                "ranks": [37 % ranks],
                "cost_ms_per_step": 24.0,
                "saving_ms_per_step": 23.3,
                "saving_low_ms": 18.0,
                "saving_high_ms": 28.0,
                "saving_pct": 8.7,
                "saving_alone_ms": 23.3,
                "confidence": 0.9,
                "cause": "device: the same kernels take 1.11 times as long",
                "remedy": "check clocks and power of that device",
                "evidence": [{"what": "own time", "value": 24.0, "unit": "ms", "where": f"rank {37 % ranks}"}],
                "where": [],
                "docs": "docs/findings/straggler.md",
            },
            _finding("launch-overhead", "The device waits for kernel launches", alone_ms=12.0, adds_ms=7.0),
            _finding("optimizer", "The optimizer is not fused", alone_ms=6.0, adds_ms=6.0),
        ],
        "findings_combined": [
            {"ids": ["straggler"], "saving_ms_per_step": 23.3},
            {"ids": ["straggler", "launch-overhead"], "saving_ms_per_step": 30.3},
            {"ids": ["straggler", "launch-overhead", "optimizer"], "saving_ms_per_step": 36.3},
        ],
        "steadiness": None,
        "guides": [],
        "details": _details(ranks, steps),
        "warnings": ["cut off: the trace of rank 51"],
    }


def _finding(id_: str, title: str, *, alone_ms: float, adds_ms: float) -> dict[str, Any]:
    return {
        "id": id_, "title": title, "ranks": [], "cost_ms_per_step": alone_ms, "saving_ms_per_step": adds_ms,
        "saving_low_ms": 0.5 * alone_ms, "saving_high_ms": 1.5 * alone_ms, "saving_pct": alone_ms / 2.67,
        "saving_alone_ms": alone_ms, "confidence": 0.8, "cause": "as it is", "remedy": "change it", "evidence": [],
        "where": [], "docs": f"docs/findings/{id_}.md",
    }  # fmt: skip


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


def _memory() -> dict[str, Any]:
    return {
        "time_ms": [0.0, 100.0, 260.0],
        "allocated_bytes": [40_000_000_000, 71_000_000_000, 42_000_000_000],
        "reserved_bytes": [75_000_000_000] * 3,
        "by_category": {"kept": [40_000_000_000] * 3, "activations": [0, 31_000_000_000, 2_000_000_000]},
    }


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
        step=100,
        ranks=tuple(np.linspace(0, ranks - 1, drawn).round().astype(int).tolist()),
        span_ns=int(STEP_NS),
        rank=np.repeat(np.arange(drawn), per_rank),
        kind=kind,
        start_ns=np.hstack((start, begin)).reshape(-1).astype(np.int64),
        dur_ns=np.hstack((dur, end - begin)).reshape(-1).astype(np.int64),
        wait_ns=np.hstack((np.zeros_like(dur), last - begin)).reshape(-1).astype(np.int64),
        name=name,
        match=each[2],
        launch=launched,
        delay_ns=np.where(launched < 0, -1, noise.integers(7_000, 9_000_000, len(launched))),
        names=(*KERNELS, *COLLECTIVES, "host: train.py:42"),
        launches=LAUNCHES,
        matched=MatchedCollectives(("all_gather · fsdp · 218.0 MB",) * num_comm, begin.argmax(axis=0)),
    )
