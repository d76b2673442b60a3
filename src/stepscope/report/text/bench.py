"""The results of a benchmark on the terminal: a table of times, one of communication and memory, and every doubt.

A folder of results shows medians and advice.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from stepscope.cost.calibration import Calibration
from stepscope.report.terminal import name_text, number_text, plain_table, print_fitting, print_table
from stepscope.results.folder import BenchResults
from stepscope.results.sweeps import VariantResult, Verdict
from stepscope.results.times import BenchTimes, bench_times, ratio
from stepscope.units import NS_PER_MS, NS_PER_S, NS_PER_US, ms, printable, readable_bytes

Row = dict[str, Any]
_MAX_ROWS = 40


def print_bench(document: dict[str, Any], out: Console) -> None:
    """Print the series of a results document, the first one as the reference of the others."""
    rows = [row for row in document["series"] if row["samples_ms"]]
    if not rows:
        out.print("nothing was measured")
        return
    environment = document["environment"]
    runs, steps = len(rows[0]["samples_ms"]), len(rows[0]["samples_ms"][0])
    where = f"{environment.get('world_size')} ranks, {environment.get('backend')}, {environment.get('device')}"
    out.print(f"{where}, torch {environment.get('torch')}; {runs} interleaved runs of {steps} steps", markup=False)
    _print_times(rows, out)
    _print_figures(rows, out)
    _print_agreement(rows, out)
    print_doubts(rows, out)


def print_bench_results(results: BenchResults, out: Console) -> None:
    """Print one row per series, the advice, and why the results are not complete."""
    out.print(name_text(results.command or results.name, width=200, style="bold"))
    table = _table(out, "", "median ms", "95 % interval", "time", "steps")
    first = None
    for series in list(results.series.values())[:_MAX_ROWS]:
        samples = [[time / NS_PER_MS for time in run] for run in series.samples_ns]
        times = bench_times(samples)
        if times is None:
            continue
        over = "1" if first is None else _ratio_text(samples, first)
        first = first or samples
        interval = f"{ms(times.low_ns):.2f} - {ms(times.high_ns):.2f}"
        table.add_row(
            name_text(series.name, width=48), f"{ms(times.median_ns):.2f}", interval, over, str(times.num_steps)
        )
    print_fitting(table, out, least_needed=("steps", "95 % interval"), elsewhere="a wider terminal or --html shows all")
    if len(results.series) > _MAX_ROWS:
        out.print(f"and {len(results.series) - _MAX_ROWS} more series; --html shows all")
    for line in results.advice:
        out.print(name_text(f"-> {line}", width=300))
    if results.message:
        out.print(name_text(f"not complete: {results.message}", width=300))


def times_of(row: Row) -> BenchTimes | None:
    """Return the times of one series."""
    return bench_times(row["samples_ms"], warmup_steps=row["config"].get("warmup_steps") or 0)


def print_doubts(rows: list[Row], out: Console) -> None:
    """Print what speaks against the measurement, evidence and remedy, the same doubt of several series once."""
    found: dict[str, list[str]] = {}
    for row in rows:
        times = times_of(row)
        for doubt in times.doubts if times else ():
            found.setdefault(doubt.remedy, []).append(f"{row['name']}: {doubt.evidence}")
    if not found:
        out.print("steady: nothing speaks against these times", markup=False)
    for remedy, evidence in found.items():
        shown = "; ".join(evidence[:3]) + (f"; and {len(evidence) - 3} more" if len(evidence) > 3 else "")
        out.print(f"unsteady: {shown}. What to do: {remedy}.", markup=False)


def _print_times(rows: list[Row], out: Console) -> None:
    table = _table(out, "", "median ms", "95 % interval", "mean ± std", "min - max", "time")
    for row in rows:
        times, summary = times_of(row), row["summary"]
        assert times is not None
        table.add_row(
            name_text(row["name"]),
            f"{ms(times.median_ns):.2f}",
            f"{ms(times.low_ns):.2f} - {ms(times.high_ns):.2f}",
            f"{ms(times.mean_ns):.2f} ± {ms(times.std_ns):.2f}",
            f"{summary['min_step_time']:.1f} - {summary['max_step_time']:.1f}",
            "1" if row is rows[0] else _ratio_text(row["samples_ms"], rows[0]["samples_ms"]),
        )
    print_fitting(table, out, least_needed=("min - max", "mean ± std", "95 % interval"))


def _table(out: Console, *columns: str) -> Table:
    table = plain_table(out, *columns)
    table.columns[0].no_wrap = True
    return table


def _ratio_text(samples: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> str:
    return "{:.2f} x [{:.2f}, {:.2f}]".format(*ratio(samples, reference))


_THROUGHPUT = {"samples/s": ("throughput_samples_per_sec", ".1f"), "tokens/s": ("tokens_per_sec", ",.0f")}
_COMMUNICATION = {
    "comm ms": ("comm_ms_per_step", ".2f"),
    "exposed ms": ("exposed_comm_ms_per_step", ".2f"),
    "hidden %": ("overlap_pct", ".0f"),
    "overlap": ("overlap_efficiency", ".2f"),
}
_MEMORY = {"peak GB": ("peak_memory_allocated_gb", ".2f"), "reserved GB": ("peak_memory_reserved_gb", ".2f")}
_LEFT_OUT_FIRST = ("overlap", "reserved GB", "samples/s", "hidden %", "final loss", "comm ms")
_LOSS = {"final loss": ("final_loss", ".4f")}


def _print_figures(rows: list[Row], out: Console) -> None:
    groups = [_THROUGHPUT, *(g for g in (_COMMUNICATION, _MEMORY) if _known(rows, g)), _LOSS]
    columns = {title: figure for group in groups for title, figure in group.items()}
    table = _table(out, "", *columns)
    for row in rows:
        cells = (number_text(row["summary"].get(name), form) for name, form in columns.values())
        table.add_row(name_text(row["name"]), *cells)
    print_fitting(table, out, least_needed=_LEFT_OUT_FIRST)
    if _COMMUNICATION in groups:
        said = "hidden: under compute; overlap: together / the smaller of the two"
        out.print(f"communication per step while profiled; {said}", markup=False)
    for reason in dict.fromkeys(row["summary"].get("overlap_reason") for row in rows):
        if reason:
            out.print(f"communication unknown: {printable(reason, width=300)}", markup=False)


def _known(rows: list[Row], group: dict[str, tuple[str, str]]) -> bool:
    return any(row["summary"].get(name) is not None for row in rows for name, _ in group.values())


def _print_agreement(rows: list[Row], out: Console) -> None:
    checked = [(row["name"], row["agreement"]) for row in rows if row.get("agreement")]
    if len(checked) < 2:
        return
    apart = [(name, a) for name, a in checked if not a["agrees"]]
    for name, a in apart:
        out.print(f"{name} DIFFERS from {checked[0][0]}: {_errors(a)}", markup=False)
    if not apart:
        worst = max((a for _, a in checked), key=lambda a: a["weight_error"])
        same = "all equal bit by bit" if all(a["equal"] for _, a in checked) else f"at most {_errors(worst)}"
        out.print(f"same results after {worst['steps']} steps: {same}", markup=False)


def _errors(a: dict[str, Any]) -> str:
    gradient = "unknown" if a["gradient_error"] is None else f"{a['gradient_error']:.1e}"
    return f"gradient {gradient}, weights {a['weight_error']:.1e}, loss {a['loss_error']:.1e} (relative)"


# A sweep on the terminal: each variant against the first, whether results agree, and the advice.

_SWEEP_LEFT_OUT_FIRST = ("reserved GB", "loss", "first step s", "gradient", "MFU %", "peak GB")


def print_sweep(document: Mapping[str, Any], verdict: Verdict, out: Console) -> None:
    """Print the question, the variants, and what to do."""
    sweep = document["sweep"]
    out.print(f"{sweep['name']}: {sweep['question']}", markup=False)
    print_fitting(_sweep_table(verdict, out), out, least_needed=_SWEEP_LEFT_OUT_FIRST)
    out.print(_method(sweep), markup=False)
    for line in _judged_otherwise(sweep, verdict):
        out.print(line, markup=False)
    for variant in (v for v in verdict.variants if v.status != "measured"):
        out.print(f"{variant.name}: {variant.status}: {printable(variant.reason or '', width=300)}", markup=False)
    if "fitting" in sweep:
        out.print(_fitting(sweep["fitting"], document["environment"].get("device_memory_gb")), markup=False)
    if verdict.mfu_reason:
        out.print(verdict.mfu_reason, markup=False)
    for line in verdict.advice:
        out.print(f"-> {line}", markup=False)


def _sweep_table(verdict: Verdict, out: Console) -> Table:
    measured = [v for v in verdict.variants if v.step_ns is not None]
    columns = [_column(v, first=v is measured[0]) for v in measured]
    known = [title for title in (columns[0] if columns else {}) if any(c[title] is not None for c in columns)]
    table = _table(out, "", *known)
    for variant, cells in zip(measured, columns, strict=True):
        table.add_row(name_text(variant.name), *(cells[title] or "?" for title in known))
    if out.soft_wrap:  # a pipe has no edge to cut at
        table.width = Measurement.get(out, out.options.update(width=1000), table).maximum
    return table


def _column(variant: VariantResult, *, first: bool) -> dict[str, str | None]:
    found = variant.agreement
    return {
        "median ms": _number(variant.step_ns, ".2f", per=NS_PER_MS),
        "against the first": "1" if first else _gain(variant),
        "peak GB": _gigabytes(variant.peak_memory_gb),
        "reserved GB": _gigabytes(variant.reserved_memory_gb),
        "first step s": _number(variant.first_step_ns, ".2f", per=NS_PER_S),
        "gradient": _number(found.gradient_error if found else None, ".1e"),
        "loss": _number(found.loss_error if found else None, ".1e"),
        "agrees": {True: "yes", False: "NO", None: "?"}[found.agrees if found else None],
        "MFU %": _number(variant.mfu, ".1f", per=0.01),
    }


def _judged_otherwise(sweep: Mapping[str, Any], verdict: Verdict) -> list[str]:
    usual = {v["name"]: (v.get("tolerance") or sweep["tolerance"])["why"] for v in sweep["variants"]}
    found: dict[str, list[str]] = {}
    for v in verdict.variants:
        if v.agreement and v.agreement.agrees is not None and v.agreement.why != usual[v.name]:
            found.setdefault(v.agreement.why, []).append(v.name)
    return [f"{', '.join(names)}: {why}" for why, names in found.items()]


def _gain(variant: VariantResult) -> str:
    if variant.gain is None:
        return "?"
    text = f"{variant.gain.speedup:.2f} x [{variant.gain.low:.2f}, {variant.gain.high:.2f}]"
    return f"{text} (noise)" if variant.gain.equal else text


def _method(sweep: Mapping[str, Any]) -> str:
    tolerance = sweep["tolerance"]
    other = "the same batch in two halves" if sweep["reference"] == "halves" else "the first variant"
    bounds = f"gradient {tolerance['gradient']:.1e}, loss {tolerance['loss']:.1e}: {tolerance['why']}"
    own: dict[str, list[str]] = {}
    for v in sweep["variants"]:
        if found := v.get("tolerance"):
            own.setdefault(f"{found['gradient']:.1e} and {found['loss']:.1e}", []).append(v["name"])
    more = "".join(f"; {', '.join(names)} {bound}" for bound, names in own.items())
    return f"speed is per sample; results agree with {other} within ({bounds}{more}), relative"


def _fitting(found: Mapping[str, Any], device_memory_gb: float | None) -> str:
    limit_gb = found["memory_limit_bytes"] / 1e9 if found["memory_limit_bytes"] else device_memory_gb
    where = f" in {limit_gb:.2f} GB" if limit_gb else ""
    reasons = {int(size): reason for size, reason in found["did_not_fit"].items()}
    largest = f"largest batch that fits{where}: {found['largest']}"
    if not reasons:
        return largest
    return f"{largest}; {min(reasons)} does not: {printable(reasons[min(reasons)], width=140)}"


def _gigabytes(value: float | None) -> str | None:
    return _number(value, ".2f" if value is None or value >= 1 else "#.3g")


def _number(value: float | None, form: str, *, per: float = 1.0) -> str | None:
    return None if value is None else f"{value / per:{form}}"


# A calibration as a table on the terminal.


def print_calibration(calibration: Calibration, out: Console) -> None:
    """Print one row per operation and world size."""
    print_table(
        out,
        calibration.curves,
        ("operation", lambda curve: curve.op),
        ("ranks", lambda curve: str(curve.world_size)),
        ("sizes", lambda curve: " - ".join(readable_bytes(curve.points[i][0]) for i in (0, -1))),
        ("latency us", lambda curve: f"{curve.pieces.lines()[0].alpha_ns / NS_PER_US:.1f}"),
        ("GB/s", lambda curve: f"{1 / slope:.2f}" if (slope := curve.pieces.lines()[-1].ns_per_byte) else "-"),
        ("pieces", lambda curve: str(len(curve.pieces.lines()))),
        ("R2", lambda curve: f"{curve.r2:.4f}"),
        ("mean err", lambda curve: f"{curve.mean_error:.1%}".replace("%", " %")),
        ("max err", lambda curve: f"{curve.max_error:.1%}".replace("%", " %")),
        ("left-out err", lambda curve: number_text(curve.left_out_error, ".1%").replace("%", " %")),
        least_needed=("pieces", "R2", "max err", "left-out err", "sizes"),
    )
    out.print("errors are relative; left-out: each size predicted from the others. R2 of log time.")
    for curve in calibration.curves:
        if curve.doubt:
            out.print(curve.doubt)
