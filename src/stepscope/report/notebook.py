"""An analysis or a comparison as a small piece of HTML for a notebook: verdict, budget as one bar, first findings.

No script and no style sheet: notebooks drop them, and names in a trace are untrusted, so all of them are escaped.
"""

from collections.abc import Iterable
from html import escape
from typing import Any, Protocol

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import Diagnosis, conclude
from stepscope.errors import InputError, UsageError
from stepscope.report import pictures
from stepscope.report.drawing import PALETTE, Drawing
from stepscope.report.html.page_data import grid_of
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.step_pictures import rank_times, step_times, timeline_drawing
from stepscope.units import NS_PER_MS, printable

_MAX_FINDINGS = 5


def summary_line(account: Account, diagnosis: Diagnosis) -> str:
    """Return the run in one line: name, size, verdict, step, the first finding."""
    words = [printable(account.run.name, width=40) + ":", _size(account) + ","]
    if account.step:
        words += [conclude(account, diagnosis).verdict + ",", f"step {account.step.step_ns / NS_PER_MS:.2f} ms,"]
    first = next(iter(diagnosis.worth), None)
    words.append(f"first: {first.id} ({first.alone_ns / NS_PER_MS:.1f} ms)" if first else "no findings")
    return " ".join(words)


def summary_page(account: Account, diagnosis: Diagnosis) -> str:
    """Return the run as a small page."""
    parts = [f"<b>{_safe(account.run.name)}</b> {_safe(_size(account))}"]
    if account.step:
        step_ms = account.step.step_ns / NS_PER_MS
        mfu = f", MFU {100 * account.efficiency.mfu:.1f} %" if account.efficiency.mfu is not None else ""
        parts.append(f"<b>{_safe(conclude(account, diagnosis).headline)}</b>; {account.whole} {step_ms:.2f} ms{mfu}")
        parts.append(_bar([(p.part, p.pct, p.ns_per_step / NS_PER_MS) for p in account.step.parts]))
    worth = diagnosis.worth[:_MAX_FINDINGS]
    rows = [(f.title, f"{f.alone_ns / NS_PER_MS:.1f} ms", f"{f.saving_pct:.0f} %") for f in worth]
    parts.append(
        _table(("what to fix", f"saves per {account.whole}", f"of the {account.whole}"), rows)
        if rows
        else "No findings."
    )
    parts += [f'<span style="opacity:.75">! {_safe(line)}</span>' for line in account.warnings[:3]]
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in parts)


def comparison_page(document: dict[str, Any]) -> str:
    """Return a comparison (the document of `stepscope compare`) as a small page."""
    step = document["step_ms"]
    rows = [
        (row["part"], _number(row["a"]), _number(row["b"]), _number(row["change"], signed=True))
        for row in document["budget"]
    ]
    head = (
        f"<b>{_safe(document['a']['name'])}</b> and <b>{_safe(document['b']['name'])}</b>: {_safe(document['verdict'])}"
    )
    change = "" if step["change_pct"] is None else f" ({step['change_pct']:+.1f} %)"
    line = f"step {_number(step['a'])} to {_number(step['b'])} ms{change}"
    table = _table(("part", "A ms", "B ms", "change"), rows)
    return "".join(f'<div style="margin:4px 0">{part}</div>' for part in (head, line, table))


def _size(account: Account) -> str:
    ranks, steps = len(account.run.ranks), account.num_steps
    return f"{ranks} rank{'s' * (ranks != 1)}, {steps} step{'s' * (steps != 1)}"


def _bar(parts: Iterable[tuple[str, float, float]]) -> str:
    cells = "".join(
        f'<span title="{_safe(name)}: {time_ms:.2f} ms, {pct:.1f} %" style="display:inline-block;height:14px;'
        f'width:{max(pct, 0):.2f}%;background:{_colour(name)}"></span>'
        for name, pct, time_ms in parts
    )
    return f'<div style="width:100%;max-width:640px;white-space:nowrap;font-size:0;overflow:hidden">{cells}</div>'


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


class Plots:
    """What an analysis can be seen as."""

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

    def plot_budget(self: _Analysis) -> Drawing:
        """Return where the step goes."""
        return _there(pictures.budget(self.document), "no step was recorded")

    def plot_waterfall(self: _Analysis) -> Drawing:
        """Return the losses between the chip's peak and the achieved FLOP rate."""
        return _there(pictures.waterfall(self.document), "the FLOPs or the chip's peak are unknown")

    def plot_what_if(self: _Analysis) -> Drawing:
        """Return the step with each of the first fixes made."""
        return _there(pictures.what_if(self.document), "no finding has a fix to replay")

    def plot_code(self: _Analysis, over: str = "lines") -> Drawing:
        """Return what the user's `lines` or the model's `modules` take, as an icicle."""
        if over not in ("lines", "modules"):
            raise UsageError(f"plot_code() draws lines or modules, not {over!r}")
        return _there(pictures.icicle(self.document, over), "no owners were recorded")

    def plot_roofline(self: _Analysis) -> Drawing:
        """Return kernels below the chip's roof."""
        return _there(pictures.roofline(self.document), "neither the kernels' shapes nor the chip are known")

    def plot_kernel_durations(self: _Analysis) -> Drawing:
        """Return the time in kernels by their duration."""
        return _there(pictures.kernel_durations(self.document), "nothing ran on a device")

    def plot_queue(self: _Analysis) -> Drawing:
        """Return how much launched work was queued on the device."""
        return _there(pictures.device_queue(self.document), "no launch of device work was recorded")

    def plot_waiting(self: _Analysis) -> Drawing:
        """Return which rank waits for which."""
        return _there(pictures.waiting(self.document), "no rank waited for another")

    def plot_traffic(self: _Analysis) -> Drawing:
        """Return which rank sends how much to which."""
        return _there(pictures.sending(self.document), "no communication of known size was recorded")

    def plot_bandwidth(self: _Analysis) -> Drawing:
        """Return the bandwidth of each group's collectives."""
        return _there(pictures.bandwidth(self.document), "no collective's bandwidth is known")

    def plot_memory(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the recorded steps."""
        return _there(pictures.memory_over_steps(self.document), _NO_ALLOCATIONS)

    def plot_memory_of_run(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the whole run."""
        return _there(pictures.memory_over_run(self.document), "no step log holds samples of memory")

    def plot_memory_peak(self: _Analysis) -> Drawing:
        """Return what is alive at the peak of the fullest rank."""
        return _there(pictures.memory_peak(self.document), _NO_ALLOCATIONS)

    def plot_pipeline(self: _Analysis) -> Drawing:
        """Return a pipeline's micro-batches with the ideal below them."""
        return _there(pictures.pipeline(self.document), "no pipeline with known micro-batches was found")

    def plot_experts(self: _Analysis) -> Drawing:
        """Return the load of each rank's experts."""
        return _there(pictures.experts(self.document), "no experts of known load were found")


_NO_ALLOCATIONS = "no allocations were recorded (stepscope record --memory)"


def _there(drawing: Drawing | None, why_not: str) -> Drawing:
    if drawing is None:
        raise InputError(f"nothing to plot: {why_not}")
    return drawing
