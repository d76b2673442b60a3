"""The page of a run without traces: its steps over the run, and what the regions of a step take on each rank."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.analyze.step.steadiness import Series
from stepscope.report.html.sheets.sheet import (
    Axis,
    Card,
    Line,
    Lines,
    Section,
    Sheet,
    Stack,
    Stacks,
    Value,
    table_of,
    thinned,
)
from stepscope.units import NS_PER_MS, printable

_MAX_RANKS = 32
_MAX_DRAWN = 6
_REST = "other"
_NAME_WIDTH = 44
_PERCENTS = {"occupancy_pct": "occupancy", "sm_pct": "SM", "dram_pct": "DRAM", "tensor_pct": "tensor"}


def steps_sheet(document: dict[str, Any], series: Series | None) -> Sheet:
    """Return the page, from the report's JSON of the run (`light_json`) and the job's steps in order."""
    run, ranks = document["run"], _late_first(document)
    facts = [f"{run['num_ranks']} rank{'s' * (run['num_ranks'] != 1)}", f"{run['num_steps']} steps", "no trace"]
    return Sheet(
        title=run["name"],
        facts=(*facts, *(str(run[k]) for k in ("device", "backend", "torch") if run[k])),
        cards=_cards(document),
        sections=(*_over_the_run(document, series), _by_rank(ranks), *_measured(document)),
        notes=tuple(document["warnings"]),
    )


def _late_first(document: dict[str, Any]) -> list[dict[str, Any]]:
    late = [s["rank"] for s in document["stragglers"]]
    return sorted(document["ranks"], key=lambda r: late.index(r["rank"]) if r["rank"] in late else len(late))


def _cards(document: dict[str, Any]) -> tuple[Card, ...]:
    step, steady = document["step"], document["steadiness"]
    cards = [Card("Step", step["unprofiled_ms"], "ms", "without the profiler")]
    if steady:
        cards.append(Card("99 % below", steady["p99_ms"], "ms", f"spread {steady['robust_spread_pct']:.1f} %"))
        cards.append(
            Card(
                "Spikes",
                steady["num_spikes"],
                "count",
                "much longer than their neighbours",
                "medium" if steady["num_spikes"] else "low",
            )
        )
    if step["tokens_per_s"]:
        cards.append(Card("Tokens per second", step["tokens_per_s"], "count", "of the whole job"))
    if document["stragglers"]:
        first = document["stragglers"][0]
        late = f"{first['late_ms_per_step']:.2f} ms late per step"
        cards.append(Card("Straggler", f"rank {first['rank']}", "text", late, "high"))
    elif len(document["ranks"]) > 1:
        cards.append(Card("Straggler", "none", "text", "by the step logs", "low"))
    return tuple(cards)


def _over_the_run(document: dict[str, Any], series: Series | None) -> list[Section]:
    """Return every step of the job (the median over ranks), and of ranks one by one where they are few."""
    if series is None:
        return []
    points = [
        (float(n), d) for n, d in zip(series.step.tolist(), (series.dur_ns / NS_PER_MS).round(4).tolist(), strict=True)
    ]
    steady = document["steadiness"]
    said = (
        "Median over ranks of the steps without the profiler."
        if len(document["ranks"]) > 1
        else "Steps without the profiler."
    )
    table = None
    if steady:
        rows: list[Sequence[Value]] = [
            (
                steady["num_steps"],
                steady["warm_up_steps"],
                *(steady[f"{k}_ms"] for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
            )
        ]
        titles = [
            ("steps", "count"),
            ("warm-up", "count"),
            *((k, "ms") for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
        ]
        table = table_of(titles, rows)
    chart = Lines(
        (Line("step", thinned(points)),), Axis("step", "number"), Axis("step time", "ms"), "Step time over the run"
    )
    return [Section("steps", "Steps over the run", (said,), chart, table)]


def _by_rank(ranks: Sequence[dict[str, Any]]) -> Section:
    names = list(dict.fromkeys(name for rank in ranks for name in rank["regions_ms"]))
    bars = tuple(
        Stack(f"rank {rank['rank']}", _parts(rank)) for rank in ranks[:_MAX_RANKS] if rank["median_step_ms"] is not None
    )
    chart = Stacks(bars, "ms", "Regions of the step by rank; the table below holds the numbers") if bars else None
    titles = [
        ("rank", "count"),
        ("host", "text"),
        ("steps", "count"),
        ("step", "ms"),
        *((name.replace("_", " "), "ms") for name in names),
    ]
    rows = [
        (r["rank"], r["host"], r["num_steps"], r["median_step_ms"], *(r["regions_ms"].get(name) for name in names))
        for r in ranks
    ]
    said = "Medians of the steps without the profiler; late ranks first. Other is what no region covers."
    return Section("ranks", "Regions of the step by rank", (said,), chart, table_of(titles, rows))


def _measured(document: dict[str, Any]) -> list[Section]:
    """Return the kernels that Nsight Compute measured, where it did."""
    if not document["kernels"]:
        return []
    titles = [("kernel", "text"), ("launches", "count"), ("mean", "ms")]
    titles += [*((f"{title} %", "number") for title in _PERCENTS.values()), ("bound", "text"), ("waits for", "text")]
    rows = [_kernel(kernel) for kernel in document["kernels"]]
    said = "As Nsight Compute measured them, each launch alone and with fixed clocks: not the times of training."
    return [Section("kernels", "Measured kernels", (said,), None, table_of(titles, rows))]


def _kernel(kernel: dict[str, Any]) -> tuple[Value, ...]:
    name = printable(kernel["name"].removeprefix("void "), width=_NAME_WIDTH)
    percents = [None if kernel[key] is None else round(kernel[key], 1) for key in _PERCENTS]
    return name, kernel["count"], kernel["mean_ms"], *percents, kernel["bound"], kernel["stall"]


def _parts(rank: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    """Return the regions of a rank, and the rest: medians of parts need not sum to the median of the whole."""
    parts = [(name, value) for name, value in rank["regions_ms"].items() if value]
    rest = rank["median_step_ms"] - float(np.sum([value for _, value in parts]))
    return (*parts, *(((_REST, rest),) if rest > 0 else ()))
