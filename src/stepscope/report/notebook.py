"""An analysis or a comparison as a small piece of HTML for a notebook: verdict, budget as one bar, first findings.

No script and no style sheet: notebooks drop them, and names in a trace are untrusted, so all of them are escaped.
"""

from collections.abc import Iterable
from html import escape
from typing import Any, Protocol

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.verdict import conclude
from stepscope.errors import InputError, UsageError
from stepscope.report.drawing import PALETTE, Drawing
from stepscope.report.html.page_data import grid_of
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.pictures import PICTURES, bandwidth_drawing
from stepscope.report.step_pictures import (
    PART_COLOUR,
    budget_drawing,
    icicle_drawing,
    timeline_drawing,
    waterfall_drawing,
    what_if_drawing,
)
from stepscope.units import NS_PER_MS, printable
from stepscope.whatif.settings import switches

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
    return PALETTE.get(PART_COLOUR.get(part, part), PALETTE["unknown"])


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
    def diagnosis(self) -> Diagnosis: ...


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
        return _there(PICTURES["run_steps"](self.account), "fewer than two steps are known of more than one rank")

    def plot_budget(self: _Analysis) -> Drawing:
        """Return where the step goes."""
        return _there(budget_drawing(self.account.step) if self.account.step else None, "no step was recorded")

    def plot_waterfall(self: _Analysis) -> Drawing:
        """Return the way from the chip's peak to the achieved FLOP rate."""
        return _there(waterfall_drawing(self.account.waterfall), "the FLOPs or the chip's peak are unknown")

    def plot_what_if(self: _Analysis) -> Drawing:
        """Return the step with each of the first fixes made."""
        found = switches(self.account, self.diagnosis)
        return _there(what_if_drawing(found, self.diagnosis) if found else None, "no finding has a fix to replay")

    def plot_code(self: _Analysis, over: str = "lines") -> Drawing:
        """Return what the user's `lines` or the model's `modules` take, as an icicle."""
        if over not in ("lines", "modules"):
            raise UsageError(f"plot_code() draws lines or modules, not {over!r}")
        trees = self.account.code_trees
        tree = None if trees is None else getattr(trees, over)
        return _there(icicle_drawing(tree, over=over) if tree else None, "no owners were recorded")

    def plot_roofline(self: _Analysis) -> Drawing:
        """Return kernels below the chip's roof."""
        return _there(PICTURES["roofline"](self.account), "no kernel's shapes are known, or not the chip")

    def plot_kernel_durations(self: _Analysis) -> Drawing:
        """Return how long kernels are."""
        return _there(PICTURES["durations"](self.account), "nothing ran on a device")

    def plot_queue(self: _Analysis) -> Drawing:
        """Return how much launched work lay waiting on the device."""
        return _there(PICTURES["queue"](self.account), "no launch of device work was recorded")

    def plot_waiting(self: _Analysis) -> Drawing:
        """Return which rank waits for which."""
        return _there(PICTURES["waiting"](self.account), "no rank waited for another")

    def plot_traffic(self: _Analysis) -> Drawing:
        """Return which rank sends how much to which."""
        return _there(PICTURES["sending"](self.account), "no communication of known size was recorded")

    def plot_bandwidth(self: _Analysis) -> Drawing:
        """Return the bandwidth of each group's collectives."""
        return _there(bandwidth_drawing(self.account.collectives, None), "no collective's bandwidth is known")

    def plot_memory(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the recorded steps."""
        return _there(
            PICTURES["memory_steps"](self.account), "no allocations were recorded (stepscope record --memory)"
        )

    def plot_memory_of_run(self: _Analysis) -> Drawing:
        """Return the memory of every rank over the whole run."""
        return _there(PICTURES["memory_run"](self.account), "no step log holds samples of memory")

    def plot_memory_peak(self: _Analysis) -> Drawing:
        """Return what is alive at the peak of the fullest rank."""
        return _there(PICTURES["memory_peak"](self.account), "no allocations were recorded (stepscope record --memory)")

    def plot_pipeline(self: _Analysis) -> Drawing:
        """Return a pipeline's micro-batches with the ideal below them."""
        return _there(PICTURES["pipeline"](self.account), "there is no pipeline whose micro-batches can be told")

    def plot_experts(self: _Analysis) -> Drawing:
        """Return the load of each rank's experts."""
        return _there(PICTURES["experts"](self.account), "no experts of known load were found")


def _there(drawing: Drawing | None, why_not: str) -> Drawing:
    if drawing is None:
        raise InputError(f"nothing to plot: {why_not}")
    return drawing
