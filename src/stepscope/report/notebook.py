"""An analysis or a comparison as a small piece of HTML for a notebook: verdict, budget as one bar, first findings.

No script and no style sheet: notebooks drop them, and names in a trace are untrusted, so all of them are escaped.
"""

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any, Protocol

from stepscope.analyze.account import Account
from stepscope.contract.names import PARTS
from stepscope.diagnose.findings import Diagnosis, conclude
from stepscope.document.statements import headline_sentence, saving_text, three_digits
from stepscope.errors import InputError, UsageError
from stepscope.report import pictures
from stepscope.report.drawing import PALETTE, Drawing
from stepscope.report.html.page_data import grid_of
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.step_pictures import rank_times, step_times, timeline_drawing
from stepscope.units import NS_PER_MS, printable

_MAX_FINDINGS = 5
#: smaller parts of the step are not named in the legend
_LEGEND_PCT = 1.0


def summary_line(account: Account, diagnosis: Diagnosis) -> str:
    """Return the run in one line: name, size, verdict, step, the first finding."""
    words = [
        printable(account.run.name, width=40) + ":",
        f"{_count(len(account.run.ranks), 'rank')}, {_count(account.num_steps, 'step')},",
    ]
    if account.step:
        words += [conclude(account, diagnosis).verdict + ",", f"step {account.step.step_ns / NS_PER_MS:.2f} ms,"]
    first = next(iter(diagnosis.worth), None)
    words.append(f"first: {first.id} ({first.alone_ns / NS_PER_MS:.1f} ms)" if first else "no findings")
    return " ".join(words)


def summary_page(document: dict[str, Any], warnings: Sequence[str]) -> str:
    """Return the run (the document of `stepscope report`) as a small page."""
    run, step, mfu = document["run"], document["step"], document["efficiency"]["mfu"]
    whole, step_ms = "step" if run["num_steps"] else "window", step["unprofiled_ms"] or step["profiled_ms"]
    facts = [_count(run["num_ranks"], "rank"), _count(run["num_steps"], "step")]
    facts += [f"{three_digits(step_ms)} ms per {whole}"] if step_ms else []
    facts += [f"MFU {three_digits(100 * mfu)} %"] if mfu is not None else []
    facts.append(document["verdict"])
    parts = [f"<b>{_safe(run['name'])}</b> {_safe(', '.join(facts))}", f"<b>{_safe(headline_sentence(document))}</b>"]
    parts += _bar([p for p in step["budget"] or () if p["ms_per_step"] > 0])
    rows = [
        (f["title"], f"{saving_text(f, step_ms)} ms", f"{f['saving_pct']:.0f} %")
        for f in document["findings"]
        if f["saving_alone_ms"] > 0
    ]
    parts += [_table(("what to fix", f"saves per {whole}", f"of the {whole}"), rows[:_MAX_FINDINGS])] if rows else []
    parts += [f'<span style="opacity:.75">! {_safe(line)}</span>' for line in warnings[:3]]
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in parts)


def comparison_page(document: dict[str, Any]) -> str:
    """Return a comparison (the document of `stepscope compare`) as a small page."""
    step = document["step_ms"]
    rows = [
        (PARTS[row["part"]], _number(row["a"]), _number(row["b"]), _number(row["change"], signed=True))
        for row in document["budget"]
    ]
    head = (
        f"<b>{_safe(document['a']['name'])}</b> and <b>{_safe(document['b']['name'])}</b>: {_safe(document['verdict'])}"
    )
    change = "" if step["change_pct"] is None else f" ({step['change_pct']:+.1f} %)"
    line = f"step {_number(step['a'])} to {_number(step['b'])} ms{change}"
    table = _table(("part", "A ms", "B ms", "change"), rows)
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in (head, line, table))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _bar(parts: Sequence[dict[str, Any]]) -> list[str]:
    """Return the step as one bar and its legend."""
    times = [f"{PARTS[p['part']]} {three_digits(p['ms_per_step'])} ms, {p['pct']:.0f} %" for p in parts]
    cells = "".join(
        f'<span title="{_safe(text)}" style="display:inline-block;height:14px;'
        f'width:{max(p["pct"], 0):.2f}%;background:{_colour(p["part"])}"></span>'
        for p, text in zip(parts, times, strict=True)
    )
    legend = "".join(
        f'<span style="display:inline-block;margin-right:1em"><span style="color:{_colour(p["part"])}">■</span> '
        f"{_safe(text)}</span>"
        for p, text in zip(parts, times, strict=True)
        if p["pct"] >= _LEGEND_PCT
    )
    bar = f'<div style="width:100%;max-width:640px;white-space:nowrap;font-size:0;overflow:hidden">{cells}</div>'
    return [bar, legend] if parts else []


def _colour(part: str) -> str:
    return PALETTE.get(pictures.PART_COLOUR.get(part, part), PALETTE["unknown"])


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def row(cells: Iterable[str], tag: str) -> str:
        return "<tr>" + "".join(f'<{tag} style="text-align:left">{_safe(c)}</{tag}>' for c in cells) + "</tr>"

    return f"<table>{row(head, 'th')}{''.join(row(cells, 'td') for cells in rows)}</table>"


def _number(value: float | None, *, signed: bool = False) -> str:
    return "unknown" if value is None else f"{value:{'+' if signed else ''}.2f}"


def _safe(name: str) -> str:
    return escape(printable(name, width=200))


# The report's pictures one by one, for notebooks: `run.plot_timeline()` in a cell shows it.
#
# Each is a `Drawing`, which Jupyter shows as SVG. What a run cannot show is an `InputError` that says what is missing.


class _Analysis(Protocol):
    @property
    def account(self) -> Account: ...

    @property
    def document(self) -> dict[str, Any]: ...


_NO_ALLOCATIONS = "no allocations were recorded (stepscope record --memory)"


def _there(drawing: Drawing | None, why_not: str) -> Drawing:
    if drawing is None:
        raise InputError(f"nothing to plot: {why_not}")
    return drawing


def _plot(draw: Callable[[dict[str, Any]], Drawing | None], why_not: str) -> Callable[[_Analysis], Drawing]:
    """Return a method that draws a picture of the document, or raises why there is none."""

    def plot(self: _Analysis) -> Drawing:
        return _there(draw(self.document), why_not)

    plot.__doc__ = draw.__doc__
    return plot


class Plots:
    """What an analysis can be seen as."""

    plot_budget = _plot(pictures.budget, "no step was recorded")
    plot_waterfall = _plot(pictures.waterfall, "the FLOPs or the chip's peak are unknown")
    plot_what_if = _plot(pictures.what_if, "no finding has a fix to replay")
    plot_roofline = _plot(pictures.roofline, "neither the kernels' shapes nor the chip are known")
    plot_kernel_durations = _plot(pictures.kernel_durations, "nothing ran on a device")
    plot_queue = _plot(pictures.device_queue, "no launch of device work was recorded")
    plot_waiting = _plot(pictures.waiting, "no rank waited for another")
    plot_traffic = _plot(pictures.sending, "no communication of known size was recorded")
    plot_bandwidth = _plot(pictures.bandwidth, "no collective's bandwidth is known")
    plot_memory = _plot(pictures.memory_over_steps, _NO_ALLOCATIONS)
    plot_memory_of_run = _plot(pictures.memory_over_run, "no step log holds samples of memory")
    plot_memory_peak = _plot(pictures.memory_peak, _NO_ALLOCATIONS)
    plot_pipeline = _plot(pictures.pipeline, "no pipeline with known micro-batches was found")
    plot_experts = _plot(pictures.experts, "no experts of known load were found")

    def plot_timeline(self: _Analysis, step: int | None = None) -> Drawing:
        """Return one step over all ranks, the typical one unless another is given."""
        grid = grid_of(self.account)
        if step is not None and (grid is None or step not in grid.steps):
            known = "none" if grid is None else ", ".join(map(str, grid.steps[:20]))
            raise UsageError(f"step {step} was not recorded; recorded: {known}")
        slices = slices_of(self.account, grid, step=step)
        return _there(timeline_drawing(slices) if slices else None, "nothing ran in a recorded step")

    def plot_steps(self: _Analysis) -> Drawing:
        """Return the time of every step of the run on every rank."""
        grid = grid_of(self.account)
        found = pictures.run_steps(self.document) or (grid and step_times(grid))
        return _there(found or None, "fewer than two steps are known")

    def plot_ranks(self: _Analysis) -> Drawing:
        """Return the own time of each rank."""
        grid = grid_of(self.account)
        return _there((grid and rank_times(grid, self.document)) or None, "fewer than two ranks have steps")

    def plot_code(self: _Analysis, over: str = "lines") -> Drawing:
        """Return what the user's `lines` or the model's `modules` take, as an icicle."""
        if over not in ("lines", "modules"):
            raise UsageError(f"plot_code() draws lines or modules, not {over!r}")
        return _there(pictures.icicle(self.document, over), "no owners were recorded")
