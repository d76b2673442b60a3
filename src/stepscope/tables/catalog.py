"""All tables of a run by name, each made on first use.

stepscope.load("run/").table("collectives")["wait_ns"]      a NumPy array
stepscope.load("run/").table("events").arrow()              a pyarrow.Table
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from stepscope.analyze.phases import step_periods
from stepscope.contract.operations import OPS
from stepscope.document.rows import TABLES
from stepscope.errors import UnknownNameError, did_you_mean
from stepscope.run.aligned import UNMATCHED, AlignedRun, aligned
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.side_files import MISSING, StepLog
from stepscope.stats.robust import numbered
from stepscope.tables.table import Cells, Table, table_of
from stepscope.trace.table import NO_STRING, NONE_NS, EventKind, Int64s, Trace, of_kinds

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis

# Texts of several ranks as numbers into one list, each distinct text once.

# text of an event without one
_UNNAMED = "?"


class StringTable:
    """Grows while ranks are added."""

    def __init__(self) -> None:
        self._place: dict[str, int] = {}

    @property
    def listed(self) -> tuple[str, ...]:
        """Return all texts by number."""
        return tuple(self._place)

    def place(self, text: str) -> int:
        """Return the number of one text."""
        return self._place.setdefault(text, len(self._place))

    def strings(self, trace: Trace, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the numbers of string ids."""
        used, back = numbered(ids)
        texts = [trace.text(i) for i in used.tolist()]
        return np.array([self.place(_UNNAMED if t is None else t) for t in texts], np.int32)[back]

    def process_ids(self, trace: Trace, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the numbers of `pid` or `tid` values as people read them."""
        used, back = numbered(ids)
        return np.array([self.place(trace.id_text(i)) for i in used.tolist()], np.int32)[back]


# The tables of what was recorded: events, device work, collectives, steps. Whole columns, however many rows.
#
# Times are on the clock that all ranks share. A step is given by its number, as the trace names it.

Numbers = npt.NDArray[Any]
_KINDS = tuple(kind.name.lower() for kind in EventKind)
# in columns of numbers under construction: nothing is known
_ABSENT = np.iinfo(np.int64).min
# the same in those of texts
_NO_TEXT = -1


def _events(shared: AlignedRun) -> Table:
    texts, threads = StringTable(), StringTable()
    parts = [_events_of(shared, i, texts, threads) for i in range(len(shared.run.ranks))]
    return _joined("events", parts, {"kind": _KINDS, "category": texts.listed, "name": texts.listed,
                                     "process": threads.listed, "thread": threads.listed})  # fmt: skip


def _device_work(shared: AlignedRun) -> Table:
    texts = StringTable()
    parts = [_work_of(shared, i, texts) for i in range(len(shared.run.ranks))]
    return _joined("device_work", parts, {"kind": _KINDS, "name": texts.listed, "operator": texts.listed})


def collectives(shared: AlignedRun) -> Table:
    """Return every communication operation of every rank."""
    groups = StringTable()
    match, last_rank = _matches(shared)
    parts = [_collectives_of(shared, i, groups, match[i], last_rank) for i in range(len(shared.run.ranks))]
    return _joined("collectives", parts, {"op": OPS, "process_group": groups.listed})


def steps(shared: AlignedRun) -> Table:
    """Return every recorded step of every rank."""
    return _joined("steps", [_steps_of(shared, i) for i in range(len(shared.run.ranks))], {})


def _step_log(logs: Sequence[StepLog]) -> Table:
    phases = StringTable()
    parts = [
        {
            "rank": np.full(len(log), log.rank),
            "step": log.step,
            "start_ns": log.start_ns,
            "dur_ns": log.dur_ns,
            "device_ns": _or_absent(log.device_ns, log.device_ns != MISSING),
            "profiled": log.profiled,
            "phase": np.array([phases.place(phase) for phase in log.phase], np.int64),
        }
        for log in logs
    ]
    return _joined("step_log", parts, {"phase": phases.listed})


def _step_values(logs: Sequence[StepLog]) -> Table:
    names = StringTable()
    parts = []
    for log in logs:
        for what, values in log.numbers.items():
            there = np.flatnonzero(~np.isnan(values))
            parts.append({
                "rank": np.full(len(there), log.rank),
                "step": log.step[there],
                "what": np.full(len(there), names.place(what)),
                "value": values[there],
            })  # fmt: skip
    return _joined("step_values", parts, {"what": names.listed})


def _events_of(shared: AlignedRun, index: int, texts: StringTable, threads: StringTable) -> dict[str, Numbers]:
    rank = shared.run.ranks[index]
    trace = rank.trace
    there = (trace["ts_ns"] != NONE_NS) & ~of_kinds(rank.kinds, (EventKind.FLOW, EventKind.META))
    rows = np.flatnonzero(there)
    began = rank.steps.of(trace["ts_ns"])
    began[rank.work.row] = rank.work.step
    return {
        "rank": np.full(len(rows), rank.rank),
        "row": rows,
        "kind": rank.kinds.take(rows),
        "category": _strings(texts, rank, trace["cat"][rows]),
        "name": _strings(texts, rank, trace["name"][rows]),
        "process": threads.process_ids(trace, trace["pid"][rows]),
        "thread": threads.process_ids(trace, trace["tid"][rows]),
        "start_ns": shared.clocks.shared(index, trace["ts_ns"][rows]),
        "dur_ns": _or_absent(trace["dur_ns"][rows], trace["dur_ns"][rows] != NONE_NS),
        "step": _step_numbers(rank, began[rows]),
        "correlation": trace.arg("correlation").at(rows, missing=_ABSENT),
        "external_id": trace.arg("external_id").at(rows, missing=_ABSENT),
    }


def _work_of(shared: AlignedRun, index: int, texts: StringTable) -> dict[str, Numbers]:
    rank = shared.run.ranks[index]
    work, trace = rank.work, rank.trace
    launched = work.launch_row >= 0
    asked = np.where(work.op_row >= 0, trace["name"][work.op_row], NO_STRING) if len(work) else work.op_row
    return {
        "rank": np.full(len(work), rank.rank),
        "row": work.row,
        "kind": work.kind.astype(np.int64),
        "name": _strings(texts, rank, work.name),
        "device": work.device,
        "stream": work.stream,
        "start_ns": shared.clocks.shared(index, work.start_ns),
        "dur_ns": work.end_ns - work.start_ns,
        "launch_ns": _or_absent(shared.clocks.shared(index, trace["ts_ns"][work.launch_row]), launched),
        "operator": _strings(texts, rank, asked),
        "step": _step_numbers(rank, work.step),
    }


def _collectives_of(
    shared: AlignedRun, index: int, groups: StringTable, match: Int64s, last_rank: Int64s
) -> dict[str, Numbers]:
    rank = shared.run.ranks[index]
    c, wait = rank.collectives, shared.wait_ns[index]
    size = np.array([_ABSENT if g.size is None else g.size for g in c.groups], np.int64)
    named = np.array([groups.place(g.desc or g.name) for g in c.groups], np.int64)
    duration, matched, issued = c.end_ns - c.start_ns, wait != UNMATCHED, c.issue_ns != _ABSENT
    return {
        "rank": np.full(len(c), rank.rank),
        "op": c.op.astype(np.int64),
        "process_group": named[c.group],
        "group_size": size[c.group],
        "start_ns": shared.clocks.shared(index, c.start_ns),
        "dur_ns": duration,
        "issue_ns": _or_absent(shared.clocks.shared(index, np.where(issued, c.issue_ns, 0)), issued),
        "size_bytes": _or_absent(c.full_bytes, c.full_bytes >= 0),
        "sent_bytes": _or_absent(c.in_bytes, c.in_bytes >= 0),
        "received_bytes": _or_absent(c.out_bytes, c.out_bytes >= 0),
        "peer": _or_absent(c.peer.astype(np.int64), c.peer >= 0),
        "step": _step_numbers(rank, c.step),
        "match": match,
        "wait_ns": _or_absent(wait, matched),
        "transfer_ns": _or_absent(duration - wait, matched),
        "last_rank": np.where(match == _ABSENT, _ABSENT, np.append(last_rank, _ABSENT)[np.maximum(match, -1)]),
    }


def _matches(shared: AlignedRun) -> tuple[list[Int64s], Int64s]:
    matches = shared.matches
    match = [np.full(len(rank.collectives), _ABSENT, np.int64) for rank in shared.run.ranks]
    for i, mine in enumerate(match):
        members = np.flatnonzero(matches.rank_index == i)
        mine[matches.row[members]] = matches.of_member[members]
    numbers = np.array([rank.rank for rank in shared.run.ranks], np.int64)
    latest = np.lexsort((shared.arrival_ns, matches.of_member))[matches.first[1:] - 1]
    return match, numbers[matches.rank_index[latest]]


def _steps_of(shared: AlignedRun, index: int) -> dict[str, Numbers]:
    rank = shared.run.ranks[index]
    recorded, periods = rank.steps, step_periods(rank)
    period, complete = np.full(len(recorded), _ABSENT, np.int64), np.full(len(recorded), _ABSENT, np.int64)
    if periods is not None:
        own = periods.step >= 0
        period[periods.step[own]] = periods.dur_ns[own]
        complete[periods.step[own]] = periods.complete[own]
    return {
        "rank": np.full(len(recorded), rank.rank),
        "step": recorded.number,
        "start_ns": shared.clocks.shared(index, recorded.start_ns),
        "dur_ns": recorded.end_ns - recorded.start_ns,
        "period_ns": period,
        "complete": complete,
    }


def _strings(texts: StringTable, rank: Rank, ids: Numbers) -> Numbers:
    numbers = texts.strings(rank.trace, ids)
    numbers[ids == NO_STRING] = _NO_TEXT
    return numbers


def _step_numbers(rank: Rank, index: npt.NDArray[np.int32]) -> Int64s:
    return np.append(rank.steps.number, _ABSENT)[index]  # -1 is no step: the extra last one


def _or_absent(values: Int64s, where: npt.NDArray[np.bool_]) -> Int64s:
    return np.where(where, values, _ABSENT)


def _of_all_ranks(parts: Sequence[Numbers]) -> Numbers:
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _joined(name: str, parts: Sequence[dict[str, Numbers]], texts: dict[str, Sequence[str]]) -> Table:
    schema = TABLES[name]
    columns: dict[str, Cells | Numbers] = {}
    for column in schema.columns:
        values = _of_all_ranks([p[column.name] for p in parts])
        listed = tuple(texts[column.name]) if column.dtype == "text" else None
        there = values != (_ABSENT if listed is None else _NO_TEXT) if column.null else None
        if there is None or there.all():
            columns[column.name] = Cells(values, listed)
        else:
            columns[column.name] = Cells(np.where(there, values, 0), listed, ~there)
    return table_of(schema, columns)


_OF_TRACES = {"events": _events, "device_work": _device_work, "collectives": collectives, "steps": steps}
_OF_LOGS = {"step_log": _step_log, "step_values": _step_values}


class LogTables:
    """The tables of step logs alone, of a run without traces."""

    NAMES = tuple(_OF_LOGS)

    def __init__(self, logs: Sequence[StepLog]) -> None:
        self._logs = logs

    def table(self, name: str) -> Table:
        """Return one table; an `UnknownNameError` where there is none of that name."""
        if name not in _OF_LOGS:
            raise UnknownNameError(f"a run without traces has no table {name!r}; {did_you_mean(name, _OF_LOGS)}")
        return _OF_LOGS[name](self._logs)


class RunTables:
    """The tables of one run. The account is imported and made only where a table needs it, by `account`."""

    def __init__(self, run: Run, *, account: "Account | Callable[[Run], Account] | None" = None) -> None:
        self._run = run
        self._given = account
        self._made: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return one table; an `UnknownNameError` where there is none of that name."""
        if name not in TABLES:
            raise UnknownNameError(f"there is no table {name!r}; {did_you_mean(name, TABLES)}")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Table:
        if name in _OF_TRACES:
            return _OF_TRACES[name](self._shared)
        if name in _OF_LOGS:
            return _OF_LOGS[name](self._run.logs)
        from stepscope.tables.account import NEED_FINDINGS, account_table

        return account_table(name, self.account, self._diagnosis if name in NEED_FINDINGS else None)

    @cached_property
    def account(self) -> "Account":
        """Return the account of the run."""
        if self._given is not None:
            return self._given(self._run) if callable(self._given) else self._given
        from stepscope.analyze.account import account_of

        return account_of(self._run)

    @property
    def late_warnings(self) -> tuple[str, ...]:
        """Return those of the account, if one was made."""
        return self.account.late_warnings if "account" in self.__dict__ else ()

    @cached_property
    def _shared(self) -> AlignedRun:
        if "account" in self.__dict__ or not (self._given is None or callable(self._given)):
            return self.account.shared
        return aligned(self._run)

    @cached_property
    def _diagnosis(self) -> "Diagnosis":
        from stepscope.diagnose.findings import diagnose

        return diagnose(self.account)
