"""A run in Python and in a notebook: `run = stepscope.load("run/")`.

    run                          one line, without analysing; a small page in a notebook
    run.verdict, run.findings    what bounds the step, and what each fix would save
    run.account                  everything measured
    run.what_if("straggler=off") the step with a change
    run.without("train.py:42")   the step without a line
    run.code.lines               what each line costs, the largest first; run.code.modules likewise
    run.compare(other)           what differs, with intervals
    run.table("collectives")     tables as NumPy, Arrow, pandas or polars
    run.plot_timeline()          pictures of the report, one by one: plot_steps, plot_memory, plot_roofline, ...
    run.to_html("report.html")   the report; to_json and to_perfetto likewise

Results are computed on first use and cached.
"""

import os
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account, account_of
from stepscope.analyze.efficiency import GivenValues
from stepscope.analyze.sampled import load_run
from stepscope.compare.sides import compared_run, comparison_document
from stepscope.contract.run_folder import atomic_write
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Conclusion, Diagnosis, conclude, diagnose
from stepscope.document.report import CodeView, code_view, report_json
from stepscope.document.rows import TABLES
from stepscope.errors import InputError, UsageError
from stepscope.records import Row
from stepscope.report.drawing import Drawing
from stepscope.report.html.compare import side_by_side
from stepscope.report.html.page import render_html
from stepscope.report.html.sheets import sheet_page
from stepscope.report.notebook import Plots, comparison_page, summary_line, summary_page
from stepscope.report.pages.compare import comparison_sheet
from stepscope.report.perfetto import perfetto_trace
from stepscope.report.timeline import timeline_of
from stepscope.run.formats import Progress
from stepscope.run.load import Run, read_captures
from stepscope.run.remote import copies_kept, named_as_given
from stepscope.tables.catalog import RunTables
from stepscope.tables.table import Table
from stepscope.units import json_text, printable
from stepscope.whatif.memory import memory_job, memory_of, memory_what_if
from stepscope.whatif.settings import Answer, what_if

PathLike = str | os.PathLike[str]
#: options of the command that are arguments of `load`
_OPTION = re.compile(
    r"--(unprofiled-step-ms|flops-per-step|tokens-per-step|samples-per-step|peak-tflops|full-ranks|jobs)\b"
)


def load(
    path: PathLike | Sequence[PathLike],
    *,
    unprofiled_step_ms: float | None = None,
    flops_per_step: float | None = None,
    tokens_per_step: float | None = None,
    samples_per_step: float | None = None,
    peak_tflops: float | None = None,
    captures: Sequence[PathLike] = (),
    full_ranks: int | None = None,
    jobs: int | None = None,
    cache: bool = True,
    cache_folder: PathLike | None = None,
    progress: Progress | None = None,
) -> "Analysis":
    """Return the analysis of a run folder, a trace, a folder or glob of traces, an address of one, or a list of them.

    The numbers are what the files do not say; each goes before what they do say. `captures` are traces of captures of
    CUDA graphs. `jobs` is the number of files read at once. A rank that cannot be read is a line in `warnings`; if none
    can, that is an `InputError`. Of more than `full_ranks` ranks (128 by default) that number is analysed in full, as
    `warnings` says.
    """
    many = [os.fspath(one) for one in path] if isinstance(path, list | tuple) else [os.fspath(path)]  # type: ignore[arg-type]
    copies, forget = copies_kept(many)
    try:
        run = load_run(
            list(copies.paths) if isinstance(path, list | tuple) else copies.paths[0],
            full_ranks=full_ranks,
            jobs=jobs,
            cache=cache and not copies.made_from,
            cache_folder=None if cache_folder is None else Path(cache_folder),
            progress=progress,
        )
    except BaseException:
        forget()
        raise
    run = named_as_given(run, copies)
    if captures:
        run = replace(run, captures=(*run.captures, *read_captures(map(Path, captures))))
    weakref.finalize(run, forget)
    known = GivenValues(
        flops_per_step=flops_per_step,
        tokens_per_step=tokens_per_step,
        samples_per_step=samples_per_step,
        peak_tflops=peak_tflops,
    )
    return Analysis(run, lambda run: account_of(run, given=known, unprofiled_ms=unprofiled_step_ms))


class Analysis(Plots):
    """One run and every answer about it."""

    def __init__(self, run: Run, make_account: Callable[[Run], Account] = account_of) -> None:
        # the ranks as they were read
        self.run = run
        self._make_account = make_account

    @cached_property
    def account(self) -> Account:
        """Return the account: every millisecond of the step, rank by rank."""
        return self._make_account(self.run)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Return the findings and what the first of them save together."""
        return diagnose(self.account)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Return what to fix, the largest saving first."""
        return self.diagnosis.findings

    @cached_property
    def conclusion(self) -> Conclusion:
        """Return what bounds the step, with the reason and the finding that decided it."""
        return conclude(self.account, self.diagnosis)

    @property
    def verdict(self) -> str:
        """Return what bounds the step in one word of the contract."""
        return self.conclusion.verdict

    @cached_property
    def code(self) -> CodeView | None:
        """Return the cost of lines and modules of the user's code, None without owners."""
        return code_view(self.account)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return everything to be careful about, ranks that could not be read first."""
        return tuple(_OPTION.sub(_argument, line) for line in (*self.run.unreadable, *self.account.warnings))

    @property
    def table_names(self) -> tuple[str, ...]:
        """Return the names of all tables."""
        return tuple(TABLES)

    def table(self, name: str) -> Table:
        """Return one table (`docs/tables.md`): events, collectives, steps, budget, findings, ..."""
        return self._tables.table(name)

    @cached_property
    def _tables(self) -> RunTables:
        return RunTables(self.run, account=lambda _: self.account)

    def what_if(self, *settings: str) -> Answer:
        """Return the step with changes such as `"straggler=off"`, `"network=2x"`, applied in order."""
        if not settings:
            raise UsageError('what_if() needs a setting, for example what_if("straggler=off")')
        return what_if(self.account, settings)

    def memory_what_if(self, *changes: str, rank: int | None = None) -> tuple[Row, ...]:
        """Return the peak of a rank (the fullest by default) with each change alone: `"checkpointing"`, `"zero=2"`,
        `"offload=optimizer"`, `"batch=2x"`; estimated from measured sizes.
        """
        found = memory_of(self.account, rank)
        if found is None:
            raise InputError("memory of that rank was not recorded; record with `stepscope record --memory`")
        one, moments = found
        job = memory_job(self.account, one)
        return tuple(memory_what_if(change, moments, job) for change in changes)

    def without(self, *owners: str, scale: Sequence[str] = (), ranks: Sequence[int] | None = None) -> Answer:
        """Return the step without lines (`"train.py:42"`) or modules (`"module:layers.*.bn"`) of the user's code.

        `scale` are owners that take another time (`"train.py:42=0.5"`); `ranks` where, on all by default.
        """
        if not owners and not scale:
            raise UsageError('without() needs an owner, for example without("train.py:42")')
        return what_if(self.account, without=owners, scale=scale, ranks=ranks)

    def compare(self, other: "Analysis | PathLike") -> "Comparison":
        """Return what differs between this run and another one, with intervals."""
        side = other if isinstance(other, Analysis) else load(other)
        both = [compared_run(one.account, one.diagnosis) for one in (self, side)]
        lanes = partial(side_by_side, (self.account, self.diagnosis), (side.account, side.diagnosis))
        return Comparison(comparison_document(both[:1], both[1:]), lanes=lanes)

    @cached_property
    def document(self) -> dict[str, Any]:
        """Return the report as the JSON document of the contract (schema 1)."""
        return report_json(self.account, self.diagnosis, details=True)

    def to_json(self, path: PathLike | None = None, *, force: bool = False) -> str:
        """Return the report as JSON text; also written to `path` where one is given."""
        return _text_out(json_text(self.document, indent=1) + "\n", path, force=force)

    def to_html(self, path: PathLike | None = None, *, force: bool = False) -> str:
        """Return the report as one HTML page; also written to `path` where one is given."""
        return _text_out(render_html(self.account, self.diagnosis), path, force=force)

    def to_perfetto(self, path: PathLike, *, force: bool = False) -> int:
        """Write all ranks on one clock as a Perfetto trace; return its size in bytes."""
        return _write(path, perfetto_trace(timeline_of(self.account.shared, owners=True)), force=force)

    def __dir__(self) -> list[str]:
        return sorted(name for name in super().__dir__() if not name.startswith("_"))

    def __repr__(self) -> str:
        if "diagnosis" in vars(self):
            return f"<Analysis {summary_line(self.account, self.diagnosis)}>"
        ranks = len(self.run.ranks)
        name = printable(self.run.name, width=40)
        return f"<Analysis {name}: {ranks} rank{'s' * (ranks != 1)}, not analysed yet (.verdict, .findings, .account)>"

    def _repr_html_(self) -> str:
        return summary_page(self.document, self.warnings)


class Comparison:
    """What differs between two runs: the document of `stepscope compare`, and its page."""

    def __init__(self, document: dict[str, Any], *, lanes: Callable[[], list[Drawing]] = list) -> None:
        self.document = document
        self._lanes = lanes

    @property
    def change_pct(self) -> float | None:
        """Return by how much the second run's step is longer, in percent of the first's; None where unknown."""
        change: float | None = self.document["step_ms"]["change_pct"]
        return change

    def to_json(self, path: PathLike | None = None, *, force: bool = False) -> str:
        """Return the comparison as JSON text; also written to `path` where one is given."""
        return _text_out(json_text(self.document, indent=1) + "\n", path, force=force)

    def to_html(self, path: PathLike | None = None, *, force: bool = False) -> str:
        """Return the comparison as one HTML page; also written to `path` where one is given."""
        return _text_out(sheet_page(comparison_sheet(self.document, lanes=self._lanes())), path, force=force)

    def __repr__(self) -> str:
        step = self.document["step_ms"]
        if step["change_pct"] is None:
            return "<Comparison: the step is unknown in at least one run>"
        words = f"step {step['a']:.2f} to {step['b']:.2f} ms, {step['change_pct']:+.1f} %"
        return f"<Comparison {words}: {self.document['verdict']}>"

    def _repr_html_(self) -> str:
        return comparison_page(self.document)


def _argument(option: re.Match[str]) -> str:
    return f"load(..., {option[1].replace('-', '_')}=...)"


def _text_out(text: str, path: PathLike | None, *, force: bool) -> str:
    if path is not None:
        _write(path, [text.encode(errors="replace")], force=force)
    return text


def _write(path: PathLike, pieces: Iterable[bytes], *, force: bool) -> int:
    target = Path(path)
    try:
        if os.path.lexists(target) and not force:
            raise UsageError(f"{target} already exists; use force=True to overwrite it")
        with atomic_write(target) as file:
            return sum(file.write(piece) for piece in pieces)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}; choose another place") from error
