"""The results of a benchmark on the terminal: a table of times, one of communication and memory, and every doubt.

A folder of results that was kept shows its medians and its advice.
"""

from typing import Any

from rich.console import Console
from rich.table import Table

from stepscope.report.fit import print_fitting
from stepscope.report.text.terminal import name_text, plain_table
from stepscope.results.folder import BenchResults
from stepscope.results.times import BenchTimes, bench_times, ratio
from stepscope.units import NS_PER_MS, ms

Row = dict[str, Any]
_MAX_ROWS = 40


def print_bench(document: dict[str, Any], out: Console) -> None:
    """Print the series of a results document, the first one as the reference of the others."""
    rows = [row for row in document["series"] if row["samples_ms"]]
    if not rows:
        out.print("nothing was measured")
        return
    out.print(_headline(document["environment"], rows), markup=False)
    _print_times(rows, out)
    _print_figures(rows, out)
    _print_agreement(rows, out)
    print_doubts(rows, out)


def print_bench_results(results: BenchResults, out: Console) -> None:
    """Print one row per series, the advice, and why the results are not complete."""
    out.print(name_text(results.command or results.name, width=200, style="bold"))
    table = plain_table(out, "", "median ms", "95 % interval", "time", "steps")
    table.columns[0].no_wrap = True
    first = None
    for series in list(results.series.values())[:_MAX_ROWS]:
        samples = [[time / NS_PER_MS for time in run] for run in series.samples_ns]
        times = bench_times(samples)
        if times is None:
            continue
        over = "1" if first is None else "{:.2f} x [{:.2f}, {:.2f}]".format(*ratio(samples, first))
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


def _headline(environment: dict[str, Any], rows: list[Row]) -> str:
    runs, steps = len(rows[0]["samples_ms"]), len(rows[0]["samples_ms"][0])
    where = f"{environment.get('world_size')} ranks, {environment.get('backend')}, {environment.get('device')}"
    return f"{where}, torch {environment.get('torch')}; {runs} interleaved runs of {steps} steps"


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
            "1" if row is rows[0] else _ratio_text(row, rows[0]),
        )
    print_fitting(table, out, least_needed=("min - max", "mean ± std", "95 % interval"))


def _table(out: Console, *columns: str) -> Table:
    """Return a table whose names are never cut."""
    table = plain_table(out, *columns)
    table.columns[0].no_wrap = True
    return table


def _ratio_text(row: Row, reference: Row) -> str:
    middle, low, high = ratio(row["samples_ms"], reference["samples_ms"])
    return f"{middle:.2f} x [{low:.2f}, {high:.2f}]"


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
    """Print throughput and loss, and communication and memory where they are known of any series."""
    groups = [_THROUGHPUT, *(g for g in (_COMMUNICATION, _MEMORY) if _known(rows, g)), _LOSS]
    columns = {title: figure for group in groups for title, figure in group.items()}
    table = _table(out, "", *columns)
    for row in rows:
        cells = (_figure(row["summary"].get(name), form) for name, form in columns.values())
        table.add_row(name_text(row["name"]), *cells)
    print_fitting(table, out, least_needed=_LEFT_OUT_FIRST)
    if _COMMUNICATION in groups:
        said = "hidden: under compute; overlap: together / the smaller of the two"
        out.print(f"communication per step while profiled; {said}", markup=False)


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


def _figure(value: float | None, form: str) -> str:
    return "?" if value is None else f"{value:{form}}"
