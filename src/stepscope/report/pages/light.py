"""Runs without traces: their steps and regions by rank, and files of other tools, from the report's JSON of them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stepscope.document.other_tools import nccl_calls, nccl_facts
from stepscope.report.sheet import Document, Section, Sheet, Value, Values, card, section_of, table_of
from stepscope.units import NS_PER_MS, printable

if TYPE_CHECKING:
    from stepscope.analyze.steadiness import Series
    from stepscope.report.drawing import Drawing

# of one line in a chart; longer ones are thinned out
_MAX_POINTS = 2000
_MAX_RANKS = 32
_PERCENTS = {"sm_pct": "SM", "dram_pct": "DRAM", "tensor_pct": "tensor", "occupancy_pct": "occupancy"}


def steps_sheet(document: dict[str, Any], series: "Series | None") -> Sheet:
    """Return the page of a run, from the report's JSON (`light_json`) and the job's steps in order."""
    run = document["run"]
    facts = [f"{run['num_ranks']} rank{'s' * (run['num_ranks'] != 1)}", f"{run['num_steps']} steps", "no trace"]
    return Sheet(
        title=run["name"],
        facts=(*facts, *(str(run[k]) for k in ("device", "backend", "torch") if run[k])),
        cards=_steps_cards(document),
        sections=(
            *_over_the_run(document, series),
            *regions_section(document),
            *measured_kernels(document),
        ),
        notes=tuple(document["warnings"]),
    )


def regions_section(document: Document) -> list[Section]:
    """Return the regions of the step by rank."""
    ranks = _late_first(document)
    names = list(dict.fromkeys(name for rank in ranks for name in rank["regions_ms"]))
    table = table_of(
        ranks,
        ("rank", "rank", "rank"),
        ("step", "ms", "median_step_ms"),
        *((name.replace("_", " "), "ms", _region(name)) for name in names),
        ("steps", "count", "num_steps"),
        ("host", "text", "host"),
    )
    said = "Medians of the steps without the profiler; late ranks first. Other is what no region covers."
    return [Section("ranks", "Regions of the step by rank", (said,), lambda: _regions(ranks), table)]


def nccl_calls_section(logs: Sequence[Document]) -> list[Section]:
    """Return the collectives in NCCL's logs."""
    return section_of(
        "nccl-calls",
        "Collectives in the NCCL log",
        "",
        nccl_calls(logs),
        ("operation", "text", "op"),
        ("size", "bytes", "size_bytes"),
        ("calls of a rank", "count", "calls"),
        ("algorithm", "text", "algorithm"),
    )


def files_sheet(document: dict[str, Any]) -> Sheet:
    """Return the page of files of other tools, from their report's JSON (`files_json`)."""
    run, hang, logs = document["run"], document["hang"], document["nccl"]
    sections = []
    if hang:
        calls = table_of(
            document["recorded_calls"],
            ("operation", "text", "op"),
            ("calls of a rank", "count", "calls"),
            ("called at", "text", "place"),
            ("group", "text", "group"),
        )
        sections.append(Section("hang", "Flight recorder", tuple(hang["conclusions"]), table=calls))
    if logs:
        sections += [Section("nccl", "NCCL log", tuple(nccl_facts(logs))), *nccl_calls_section(logs)]
    sections += section_of(
        "collectives",
        "NCCL inspector",
        "",
        document["collectives_live"],
        ("operation", "text", "op"),
        ("rank", "rank", "rank"),
        ("time", "ms", "time_ms"),
        ("bus bandwidth", "gb_per_s", "busbw_gb_per_s"),
        ("calls", "count", "count"),
        ("group", "text", "group_desc"),
    )
    files = document["files"]
    sections += measured_kernels(document)
    columns = (("file", "text", "file"), ("format", "text", "format"), ("rank", "rank", "rank"))
    sections += section_of("files", "Files", "", files, *columns)
    cards = [card("Files", len(files), "count", "of other tools; no trace")]
    cards += [card("Hang", "yes" if hang["hang"] else "none", tone="high" if hang["hang"] else "low")] if hang else []
    cards += [card("NCCL", version) for version in [log["version"] for log in logs if log["version"]][:1]]
    facts = [f"{run['num_ranks']} rank{'s' * (run['num_ranks'] != 1)}"] if run["num_ranks"] else []
    return Sheet(run["name"], tuple(facts), tuple(cards), tuple(sections), tuple(document["warnings"]))


def _region(name: str) -> Callable[[Document], Value]:
    return lambda rank: rank["regions_ms"].get(name)


def _late_first(document: Document) -> list[dict[str, Any]]:
    late = [s["rank"] for s in document["stragglers"]]
    return sorted(document["ranks"], key=lambda r: late.index(r["rank"]) if r["rank"] in late else len(late))


def _steps_cards(document: dict[str, Any]) -> tuple[Values, ...]:
    step, steady = document["step"], document["steadiness"]
    cards = [card("Step", step["unprofiled_ms"], "ms", "without the profiler")]
    if steady:
        cards.append(card("99 % below", steady["p99_ms"], "ms", f"spread {steady['robust_spread_pct']:.1f} %"))
        tone = "medium" if steady["num_spikes"] else "low"
        cards.append(card("Spikes", steady["num_spikes"], "count", "much longer than their neighbours", tone))
    if step["tokens_per_s"]:
        cards.append(card("Tokens per second", step["tokens_per_s"], "count", "of the whole job"))
    if document["stragglers"]:
        first = document["stragglers"][0]
        late = f"{first['late_ms_per_step']:.2f} ms late per step"
        cards.append(card("Straggler", f"rank {first['rank']}", "text", late, "high"))
    elif len(document["ranks"]) > 1:
        cards.append(card("Straggler", "none", "text", "by the step logs", "low"))
    return tuple(cards)


def _over_the_run(document: dict[str, Any], series: "Series | None") -> list[Section]:
    if series is None:
        return []
    known = series  # for the picture
    steady = document["steadiness"]
    many = len(document["ranks"]) > 1
    said = "Median over ranks of the steps without the profiler." if many else "Steps without the profiler."
    table = steady and table_of(
        [steady],
        *((k, "ms", f"{k}_ms") for k in ("median", "mean", "std", "p10", "p90", "p99", "min", "max")),
        ("steps", "count", "num_steps"),
        ("warm-up", "count", "warm_up_steps"),
    )
    return [Section("steps", "Steps over the run", (said,), lambda: _step_times(known), table)]


def measured_kernels(document: Document) -> list[Section]:
    """Return the kernels that Nsight Compute measured."""
    said = "As Nsight Compute measured them, each launch alone and with fixed clocks: not the times of training."
    return section_of(
        "kernels",
        "Measured kernels",
        said,
        document["kernels"],
        ("kernel", "text", lambda kernel: printable(kernel["name"].removeprefix("void "), width=44)),
        ("mean", "ms", "mean_ms"),
        ("launches", "count", "count"),
        *((f"{title} %", "number", _rounded(key)) for key, title in _PERCENTS.items()),
        ("bound", "text", "bound"),
        ("waits for", "text", "stall"),
    )


def _rounded(key: str) -> Callable[[Document], Value]:
    return lambda row: None if row[key] is None else round(row[key], 1)


# Pictures


def _step_times(series: "Series") -> "Drawing":
    from stepscope.report.charts import STEP, WIDE, Axis, Line, line_chart

    points = list(zip(map(float, series.step.tolist()), (series.dur_ns / NS_PER_MS).round(4).tolist(), strict=True))
    look = "line" if len(points) > 200 else "both"
    line = Line("step", _thinned(points), "compute", look)
    return line_chart("Step time over the run", [line], Axis("step", "count", zero=False), STEP, width=WIDE)


def _thinned(points: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    if len(points) <= _MAX_POINTS:
        return tuple(points)
    step = (len(points) - 1) / (_MAX_POINTS - 1)
    return tuple(points[round(i * step)] for i in range(_MAX_POINTS))


def _regions(ranks: Sequence[dict[str, Any]]) -> "Drawing | None":
    from stepscope.report.charts import stacks

    bars = [(f"rank {rank['rank']}", _parts(rank)) for rank in ranks if rank["median_step_ms"] is not None]
    return stacks("Regions of the step by rank", bars[:_MAX_RANKS], "ms") if bars else None


def _parts(rank: dict[str, Any]) -> tuple[tuple[str, float], ...]:
    parts = [(name, value) for name, value in rank["regions_ms"].items() if value]
    rest = rank["median_step_ms"] - sum(value for _, value in parts)
    return (*parts, *((("other", rest),) if rest > 0 else ()))
