"""Every table, declared once: name, type, unit and meaning of each column, its key in JSON, its title on a page.

    row       what the analysis returns: attributes or keys by the column's name, times in nanoseconds
    JSON      `json_rows`: by key, times in milliseconds, rounded where declared
    tables    SQL, Arrow, CSV and NumPy by name, in nanoseconds; texts, numbers and truth values only
    pages     `shown`: title, unit and key of the columns to draw, from rows of the JSON
    docs      `docs/tables.md`, made from this file by `tools/write_tables.py`

Columns marked `null` are empty where nothing is known.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from stepscope.records import dataclass
from stepscope.units import AS_IT_IS, ms, us

#: type of a column that holds lists or objects: in JSON only
NESTED = "json"
_SHOWN_AS = {
    "ns": "ms", "ns per step": "ms", "%": "pct", "bytes": "bytes", "bytes per step": "bytes", "GB/s": "gb_per_s",
    "FLOP per step": "flops", "s": "s", "J": "joules", "": "text",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    #: int64, float64, bool, text or NESTED
    dtype: str
    unit: str
    meaning: str
    #: whether it may be empty: unknown, or not of this row
    null: bool = False
    #: in JSON, where it is not the name with `ms` for `ns`; empty for a column that JSON does not have
    key: str | None = None
    #: on a page, where it is not the name
    title: str | None = None
    #: decimals in JSON
    digits: int | None = None
    #: characters of a text on a terminal, 0 for all
    width: int = 0

    @property
    def json_key(self) -> str:
        """Return the key in JSON, empty where it is not there."""
        return name_in_ms(self.name) if self.key is None else self.key

    @property
    def is_nested(self) -> bool:
        """Return whether it is in JSON only."""
        return self.dtype == NESTED

    @property
    def heading(self) -> str:
        """Return the title on a page."""
        return self.title or " ".join(w for w in self.name.split("_") if w not in ("ns", "pct", "bytes", "num"))

    @property
    def shown_as(self) -> str:
        """Return the unit that a page formats its numbers by."""
        return _SHOWN_AS.get(self.unit) or ("count" if self.dtype == "int64" else "number")


@dataclass(frozen=True)
class TableSchema:
    """One table."""

    name: str
    meaning: str
    columns: tuple[Column, ...]
    #: whether SQL, Arrow and the exports have it; else it is of a JSON document only
    queried: bool = True


def json_rows(table: str, rows: Iterable[Any], most: int | None = None) -> list[dict[str, Any]]:
    """Return rows of a table as objects of a JSON document, at most the first `most`."""
    written, listed = _written(table), list(rows)
    return [{key: change(getattr(row, name)) for name, key, change in written} for row in listed[:most]]


def json_row(table: str, row: Any) -> dict[str, Any] | None:
    """Return one row of a table as an object of a JSON document, None for none."""
    return None if row is None else json_rows(table, [row])[0]


def empty_row(table: str) -> dict[str, Any]:
    """Return the object of a row of which nothing is known."""
    return {column.json_key: None for column in SCHEMAS[table].columns if column.json_key}


def shown(table: str, *keys: str) -> list[tuple[str, str, str]]:
    """Return title, unit and key of columns of a table, by their keys in JSON, for a page."""
    known = {column.json_key: column for column in SCHEMAS[table].columns}
    return [(known[key].heading, known[key].shown_as, key) for key in keys]


@cache
def _written(table: str) -> list[tuple[str, str, Callable[[Any], Any]]]:
    return [(c.name, c.json_key, _change(c)) for c in SCHEMAS[table].columns if c.json_key]


def _change(column: Column) -> Callable[[Any], Any]:
    if column.unit.startswith("ns") and column.json_key != column.name:
        scale = us if column.json_key.endswith("_us") else ms
        return lambda value: scaled(value, scale)
    digits = column.digits
    if digits is not None:
        return lambda value: None if value is None else round(value, digits)
    return in_ms if column.is_nested else plain if column.null else _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def in_ms(record: Any) -> Any:
    """Return a record as an object of a JSON document, with the times in it by their names in milliseconds.

    >>> in_ms({"rank": 3, "wait_ns": 1_500_000, "parts": ({"busy_ns": None},)})
    {'rank': 3, 'wait_ms': 1.5, 'parts': [{'busy_ms': None}]}
    """
    if is_dataclass(record):
        record = {field.name: getattr(record, field.name) for field in fields(record)}
    if isinstance(record, dict):
        named = ((str(name), name_in_ms(str(name)), value) for name, value in record.items())
        return {key: in_ms(value) if key == name else scaled(value) for name, key, value in named}
    return [in_ms(one) for one in record] if isinstance(record, list | tuple) else plain(record)


def name_in_ms(name: str) -> str:
    """Return the name of a time in JSON: `wait_ms` for `wait_ns`."""
    return "_".join("ms" if word == "ns" else word for word in name.split("_"))


def ms_or_none(time_ns: float | None) -> float | None:
    """Return milliseconds of a time that may be unknown."""
    return None if time_ns is None else ms(time_ns)


def scaled(value: Any, scale: Callable[[float], float] = ms) -> Any:
    """Return a time that may be unknown, or a list or mapping of times, in another unit.

    >>> scaled((1_500_000, None)), scaled({"wait": 2e6})
    ([1.5, None], {'wait': 2.0})
    """
    if is_dataclass(value):  # mean and extremes of several
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {key: one if key == "count" else scaled(one, scale) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [scaled(one, scale) for one in value]
    return None if value is None else scale(value)


def plain(value: Any) -> Any:
    """Return dataclasses, tuples, sets, enumerations and arrays as JSON values; what is not finite becomes null.

    >>> plain({"share": float("nan"), "ranks": (0, 1)})
    {'share': None, 'ranks': [0, 1]}
    """
    kind = type(value)
    if kind in AS_IT_IS:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if is_dataclass(kind):
        return {field.name: plain(getattr(value, field.name)) for field in fields(kind)}
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    if isinstance(value, Enum):
        return value.name.lower()
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _text(name: str, meaning: str, **more: Any) -> Column:
    return Column(name, "text", "", meaning, **more)


def _int(name: str, unit: str, meaning: str, **more: Any) -> Column:
    return Column(name, "int64", unit, meaning, **more)


def _real(name: str, unit: str, meaning: str, **more: Any) -> Column:
    return Column(name, "float64", unit, meaning, **more)


def _bool(name: str, meaning: str, **more: Any) -> Column:
    return Column(name, "bool", "", meaning, **more)


def _nested(name: str, meaning: str, unit: str = "", **more: Any) -> Column:
    return Column(name, NESTED, unit, meaning, **more)


_RANK = _int("rank", "rank", "rank of the job")
_STEP = _int("step", "number", "number of the recorded step", null=True)
_START = _int("start_ns", "ns", "start on the clock that all ranks share, since 1970")
_DUR = _int("dur_ns", "ns", "duration")

_OWNER_COSTS = (
    _real("device_ns", "ns per step", "kernels, copies and sets"),
    _real("host_ns", "ns per step", "the host's time, waiting included"),
    _real("blocked_ns", "ns per step", "of `host_ns`: waiting for the device, or for a collective without one"),
    _real("comm_ns", "ns per step", "communication, waiting for late ranks included", title="communication"),
    _real("exposed_ns", "ns per step", "communication while the device computed and copied nothing"),
    _real("backward_device_ns", "ns per step", "of `device_ns`: in backward passes"),
    _real("backward_host_ns", "ns per step", "of `host_ns`: in backward passes"),
    _real("own_device_ns", "ns per step", "of `device_ns`: not in a row inside it"),
    _real("own_host_ns", "ns per step", "of `host_ns`: not in a row inside it"),
    _real(
        "step_pct",
        "%",
        "the longer of host and device time (with communication), of the step",
        null=True,
        digits=3,
        title="of the step",
    ),
    _real(
        "saving_ns",
        "ns per step",
        "saving if removed with all it causes, of the first ten lines",
        null=True,
        title="saving if removed",
    ),
    _bool("is_around_step", "it holds nearly everything: without it there is no step"),
    _real("flops", "FLOP per step", "of operators whose shapes were recorded", null=True),
    _real("mfu", "1", "FLOPs over device time, against the chip's peak", null=True),
    _real("memory_bytes", "bytes per step", "allocated, where memory was recorded", null=True),
)

_TABLES = (
    TableSchema(
        "events",
        "every event of the traces but flows and metadata, by rank and in the order of the file",
        (
            _RANK,
            _int("row", "row", "row in the rank's event table"),
            _text("kind", "what the event is: kernel, comm_kernel, copy, set, runtime, host_op, annotation, ..."),
            _text("category", "category as the file has it", null=True),
            _text("name", "name", null=True),
            _text("process", "process, or device"),
            _text("thread", "thread, or stream"),
            _START,
            _int("dur_ns", "ns", "duration; empty for an instant", null=True),
            _int("step", "number", "recorded step it began in, or that launched it on the device", null=True),
            _int("correlation", "id", "joins device work to the call that launched it", null=True),
            _int("external_id", "id", "joins calls and device work to their operator", null=True),
        ),
    ),
    TableSchema(
        "device_work",
        "every kernel, copy and set, with what launched it",
        (
            _RANK,
            _int("row", "row", "row in the rank's event table"),
            _text("kind", "kernel, comm_kernel, copy or set"),
            _text("name", "name of the kernel or the copy", null=True),
            _int("device", "id", "device ordinal"),
            _int("stream", "id", "stream"),
            _START,
            _DUR,
            _int(
                "launch_ns", "ns", "when the host launched it, on the shared clock; empty before the window", null=True
            ),
            _text("operator", "innermost operator around the launch", null=True),
            _int("step", "number", "recorded step that launched it; empty before the window", null=True),
        ),
    ),
    TableSchema(
        "collectives",
        "every communication operation of every rank: a kernel, or a span of gloo",
        (
            _RANK,
            _text("op", "all_reduce, all_gather, reduce_scatter, ..."),
            _text("process_group", "process group: what it is for, else its name"),
            _int("group_size", "ranks", "ranks in the group", null=True),
            _START,
            _DUR,
            _int("issue_ns", "ns", "time of the call on the host, on the shared clock", null=True),
            _int("size_bytes", "bytes", "full buffer: what a gather receives, what a scatter sends", null=True),
            _int("sent_bytes", "bytes", "given by this rank", null=True),
            _int("received_bytes", "bytes", "received by this rank", null=True),
            _int("peer", "rank", "other rank of a send or receive", null=True),
            _int("step", "number", "recorded step that issued it", null=True),
            _int(
                "match",
                "number",
                "the same on all ranks of one collective; empty where it has no counterpart",
                null=True,
            ),
            _int("wait_ns", "ns", "until the last rank arrived", null=True),
            _int("transfer_ns", "ns", "the rest of its duration", null=True),
            _int("last_rank", "rank", "the rank that arrived last", null=True),
        ),
    ),
    TableSchema(
        "steps",
        "every recorded step of every rank",
        (
            _RANK,
            _int("step", "number", "number of the step"),
            _START,
            _int("dur_ns", "ns", "duration on the host"),
            _int(
                "period_ns",
                "ns",
                "from the device's end of the step before to its own (host: to the next start)",
                null=True,
            ),
            _bool("complete", "whether the period is that of this step alone", null=True),
        ),
    ),
    TableSchema(
        "step_log",
        "every step in the step logs, profiled or not; empty for a job that stepscope did not record",
        (
            _RANK,
            _int("step", "number", "number of the step"),
            _int("start_ns", "ns", "start on the rank's own clock, since 1970"),
            _DUR,
            _int(
                "device_ns",
                "ns",
                "from the device's end of the step before to its own; of short steps the mean of a few",
                null=True,
            ),
            _bool("profiled", "whether the profiler ran"),
            _text("phase", "what the recorder was doing"),
        ),
    ),
    TableSchema(
        "step_values",
        "everything else that the step logs measured, one number per row",
        (
            _RANK,
            _int("step", "number", "number of the step"),
            _text("what", "dotted name: regions.forward_pass.ns, memory.allocated_bytes, ..."),
            _real("value", "as named", "the number"),
        ),
    ),
    TableSchema(
        "ranks",
        "every rank that was read; times are of its whole window",
        (
            _RANK,
            _text("rank_source", "how the rank is known: distributedInfo, file name or order"),
            _text("host", "machine", null=True),
            _text("device", "chip", null=True, key=""),
            _int("num_events", "events", "events in the trace"),
            _int("num_steps", "steps", "recorded steps"),
            _nested("step_ns", "duration of each recorded step on the host", "ns", title="step"),
            _int("window_ns", "ns", "length of the window", null=True),
            _int("compute_ns", "ns", "union of kernels that are not communication", null=True),
            _int("comm_ns", "ns", "union of communication", null=True, title="communication"),
            _int("memory_ns", "ns", "union of copies and sets", null=True, title="copies"),
            _int("exposed_comm_ns", "ns", "communication outside of the others", null=True, title="exposed"),
            _int("idle_ns", "ns", "window outside of all three", null=True),
            _real("overlap_pct", "%", "share of communication under compute", null=True, digits=3),
            _int("wait_ns", "ns", "union of waits for later ranks", null=True),
            _int("transfer_ns", "ns", "communication that is no wait", null=True),
            _int("unmatched_comm_ns", "ns", "communication without a counterpart", null=True, title="unmatched"),
            _int("waited_for_ns", "ns", "waits of all others where it came last", null=True, title="waited for"),
            _nested("budget_ns_per_step", "parts of its mean step", "ns"),
            _int("clock_offset_ns", "ns", "what is added to the rank's own clock", null=True, key="clock_offset_us"),
            _real(
                "clock_uncertainty_ns",
                "ns",
                "half-width that should hold the true offset",
                null=True,
                key="clock_uncertainty_us",
            ),
            _real("clock_drift_ppm", "ppm", "by how much the rank's clock runs faster", null=True),
            _nested("joins", "how its events were joined: calls, device work, operators, collectives"),
            _text("path", "file of the trace", key=""),
        ),
    ),
    TableSchema(
        "budget",
        "every part of every step of every rank, as profiled; the parts of a step sum to its period",
        (
            _RANK,
            _STEP,
            _text("part", "forward, backward, optimizer, ..., wait, launch_gap, ..., unknown"),
            _int("time_ns", "ns", "time of the part"),
        ),
    ),
    TableSchema(
        "idle",
        "idle device time of every step of every rank by cause, as profiled",
        (
            _RANK,
            _STEP,
            _text("cause", "launch, device_turnaround, host_sync, allocator, data_loading, ..."),
            _int("time_ns", "ns", "idle time of that cause"),
        ),
    ),
    TableSchema(
        "step_budget",
        "the step of the run: mean over ranks, profiler overhead subtracted where the unprofiled step is known",
        (
            _text("part", "part of the step"),
            _real("ns_per_step", "ns", "time of the part", title="per step"),
            _real("pct", "%", "share of the step", digits=4, title="of the step"),
            _real("profiled_ns", "ns", "before subtracting profiler overhead", key=""),
            _real("correction_ns", "ns", "what subtracting it changed", key="profiler_correction_ms"),
            _real("recurring_ns", "ns", "what recurs in some steps only"),
        ),
    ),
    TableSchema(
        "waterfall",
        "from the chips' peak to what was achieved; empty where FLOPs, peak or step are unknown",
        (
            _text("loss", "name of the loss; the last row is `achieved`"),
            _real("pct_of_peak", "%", "share of the peak", null=True, title="of the peak"),
            _real("ns_per_step", "ns", "the same as time", null=True, title="per step"),
            _real("plus_minus", "%", "about 95 % of `pct_of_peak`", null=True),
        ),
    ),
    TableSchema(
        "kernels",
        "kernels by name over the whole window; count and total are means per rank",
        (
            _text("name", "name", title="kernel", width=48),
            _text("function", "name without the types of its arguments", width=48),
            _text("family", "gemm, attention, elementwise, communication, ..."),
            _real("count", "kernels", "how many"),
            _real("total_ns", "ns", "their time"),
            _real("mean_ns", "ns", "time of one"),
            _int("max_ns", "ns", "the longest"),
            _real("share", "1", "of the time of all kernels"),
            _bool("tensor_core", "whether it runs on tensor cores", null=True),
            _text("precision", "operand type of a matrix product", null=True),
            _real("tflops", "TFLOP/s", "achieved, where shapes are known", null=True),
            _real("gb_per_s", "GB/s", "achieved: measured, else counting the least that must move", null=True),
            _text("bound", "compute-bound, memory-bound, latency or inefficient", null=True),
            _text("bound_from", "measured, shapes or family", null=True),
            _real("occupancy_pct", "%", "achieved occupancy where measured, else the profiler's estimate", null=True),
            _text("occupancy_from", "measured or estimated", null=True),
            _real("sm_pct", "%", "of the multiprocessors' peak, by Nsight Compute", null=True),
            _real("dram_pct", "%", "of the memory's peak, by Nsight Compute", null=True),
            _real("tensor_pct", "%", "of the tensor pipe's peak, by Nsight Compute", null=True),
            _text("stall", "what its warps waited for most, by Nsight Compute", null=True),
            _real("stall_share", "1", "of all their waiting", null=True),
            _real("count_per_step", "kernels", "how many in a step", null=True),
            _real("step_ns", "ns", "their time in a step", null=True, title="per step"),
            _real("measured_share", "1", "of its time in launches that Nsight Compute measured, or alike to one"),
        ),
    ),
    TableSchema(
        "operators",
        "operators by name over the whole window, means per rank",
        (
            _text("name", "name"),
            _text("shapes", "input shapes of the most expensive call", null=True),
            _real("calls", "calls", "how many"),
            _real("host_self_ns", "ns", "host time outside of operators it called"),
            _real("host_total_ns", "ns", "host time with them"),
            _real("device_self_ns", "ns", "device time it launched itself"),
            _real("device_total_ns", "ns", "device time with what they launched"),
            _real("host_memory_bytes", "bytes", "allocated minus freed", null=True),
            _real("device_memory_bytes", "bytes", "allocated minus freed", null=True),
        ),
    ),
    TableSchema(
        "collectives_by_group",
        "collectives by operation and process group, means per rank",
        (
            _text("op", "operation", title="collective"),
            _text("process_group", "process group", key="group", title="group"),
            _int("group_size", "ranks", "ranks in the group", null=True, title="ranks"),
            _int("count", "calls", "calls of one rank", title="calls"),
            _int("size_bytes", "bytes", "all calls of one rank", null=True, key="bytes", title="bytes"),
            _real("wait_ns", "ns", "waiting for later ranks", null=True),
            _real("transfer_ns", "ns", "the rest", null=True),
            _real("exposed_ns", "ns", "outside of compute and copies"),
            _real("algbw_gb_per_s", "GB/s", "algorithm bandwidth", null=True, digits=4, title="algbw"),
            _real("busbw_gb_per_s", "GB/s", "bus bandwidth", null=True, digits=4, title="busbw"),
            _int("late_rank", "rank", "the rank that the others waited for longest", null=True),
            _int("unmatched", "calls", "calls without a counterpart"),
            _real(
                "live_busbw_gb_per_s",
                "GB/s",
                "bus bandwidth over the whole job, where it was timed",
                null=True,
                digits=4,
                title="live busbw",
            ),
            _text("span", "within nodes or between nodes", null=True),
            _real("link_pct", "%", "of the link that it uses", null=True, digits=3, title="of the link"),
            _nested("nccl", "choices by NCCL's logs: algorithm, protocol, channels, transports"),
        ),
    ),
    TableSchema(
        "links",
        "communication within and between nodes, by process group; means per rank",
        (
            _text("span", "within nodes or between nodes", null=True, title="communication"),
            _text("process_group", "process group", key="group", title="group"),
            _int("group_size", "ranks", "ranks in the group", null=True, title="ranks"),
            _int("nodes", "nodes", "nodes of its ranks", null=True),
            _int("count", "calls", "calls of one rank", title="calls"),
            _int("size_bytes", "bytes", "all calls of one rank", null=True, key="bytes", title="bytes"),
            _real("wait_ns", "ns", "waiting for later ranks", null=True),
            _real("transfer_ns", "ns", "the rest", null=True),
            _real("exposed_ns", "ns", "outside of compute and copies"),
            _real(
                "used_gb_per_s",
                "GB/s",
                "on the link during transfers: bus bandwidth within a node, what leaves it between nodes",
                null=True,
                digits=4,
                title="in use",
            ),
            _text("link", "the link", null=True),
            _real("link_gb_per_s", "GB/s", "its bandwidth for these ranks", null=True, digits=4, title="link"),
            _real("link_pct", "%", "of it in use", null=True, digits=3, title="of the link"),
        ),
    ),
    TableSchema(
        "stragglers",
        "ranks that others wait for",
        (
            _RANK,
            _text("cause", "host, device, data, load or network", null=True),
            _real(
                "late_ns_per_step", "ns", "own time beyond that of the ranks that are not late", title="late per step"
            ),
            _int("steps_late", "steps", "steps in which it was late"),
            _int("num_steps", "steps", "steps that were judged", title="of"),
            _real("score", "1", "2 where chance names a rank in one of a hundred healthy runs", null=True),
            _real("slowdown", "1", "own time against that of the ranks that are not late", null=True, digits=4),
            _bool("persistent", "late in most steps"),
        ),
    ),
    TableSchema(
        "findings",
        "what to fix, the largest saving first",
        (
            _text("id", "id of the finding", title="finding"),
            _text("title", "one line"),
            _text("ranks", "ranks it names; in SQL separated by commas"),
            _text("docs", "page about it"),
            _real("cost_ns", "ns", "time per step that shows it", null=True, key="cost_ms_per_step", title="costs"),
            _real(
                "saving_ns",
                "ns",
                "what it adds per step once those above are fixed",
                key="saving_ms_per_step",
                title="saves more",
            ),
            _real("low_ns", "ns", "alone_ns is at least", key="saving_low_ms", title="at least"),
            _real("high_ns", "ns", "alone_ns is at most", key="saving_high_ms", title="at most"),
            _real("saving_pct", "%", "of the step", digits=3, title="of the step"),
            _real("alone_ns", "ns", "saved if it were the only fix", key="saving_alone_ms", title="saves"),
            _bool("at_most", "whether that is an upper bound"),
            _real(
                "cpu_ns",
                "ns",
                "saved for sure, without the wait for a core; only on an overloaded machine",
                null=True,
                key="saving_cpu_ms",
                title="saves CPU",
            ),
            _real("confidence", "1", "fixed rating of the rule, 0 to 1; not measured in this run"),
            _nested("where", "lines to change, with their share"),
            _nested("evidence", "the numbers behind it"),
            _text("cause", "why"),
            _text("remedy", "what to change"),
            _nested("what_if", "arguments of `whatif` for this fix"),
            _nested("shows", "where the report shows it"),
        ),
    ),
    TableSchema(
        "evidence",
        "the numbers behind the findings",
        (
            _text("finding", "id of the finding", key=""),
            _text("what", "what was measured"),
            _text("value", "the number, or a name"),
            _text("unit", "its unit"),
            _text("place", "rank, step, kernel or operator", key="where"),
        ),
    ),
    TableSchema(
        "checks",
        "the field's check lists, measured",
        (
            _text("id", "id of the check"),
            _real("value", "as checked", "what was measured", null=True),
            _text("good", "what counts as good"),
            _text("bad", "what counts as bad", null=True),
            _text("status", "pass, fail or not measured"),
            _text("reason", "why"),
        ),
    ),
    TableSchema(
        "critical_path",
        "what holds the run up, the largest first",
        (
            _RANK,
            _text("what", "host, launch, kernel, collective, copy or set"),
            _text("name", "operator, call or kernel"),
            _real("ns_per_step", "ns", "time on the path", title="per step"),
            _real("pct", "%", "share of the path", digits=3, title="of the path"),
        ),
    ),
    TableSchema(
        "memory",
        "device memory in every recorded step, where memory events were recorded",
        (
            _RANK,
            _int("step", "number", "number of the step"),
            _int("start_bytes", "bytes", "allocated when it began"),
            _int("peak_bytes", "bytes", "most allocated in it"),
            _int("end_bytes", "bytes", "allocated when it ended"),
        ),
    ),
    TableSchema(
        "code",
        "what each line of the user's code costs, the mean over ranks, where owners were recorded; with what it called",
        (
            _text("file", "source file, relative to the project"),
            _int("line", "number", "the line"),
            _int("line_to", "number", "the same; else it is between the two (0: after `line`)"),
            _text("function", "function around it"),
            _bool("is_user", "the user's own; else a library's with no line of the user's above it", key=""),
            _text("module", "module that holds most of its time", null=True),
            *_OWNER_COSTS,
            _text("source", "the line's text, if recorded", null=True, width=60),
        ),
    ),
    TableSchema(
        "modules",
        "what each module costs with those inside it, the mean over ranks, where owners were recorded",
        (_text("module", "path in the model"), *_OWNER_COSTS),
    ),
    TableSchema(
        "code_by_rank",
        "what each line of the user's code costs on each rank, with what it called",
        (
            _RANK,
            _text("file", "source file, relative to the project"),
            _int("line", "number", "the line"),
            _real("device_ns", "ns per step", "kernels, copies and sets"),
            _real("host_ns", "ns per step", "the host's time, waiting included"),
            _real("comm_ns", "ns per step", "communication, waiting for late ranks included"),
            _real("exposed_ns", "ns per step", "communication while the device computed and copied nothing"),
        ),
    ),
    TableSchema("warnings", "what to know before trusting the numbers", (_text("warning", "one line"),)),
    TableSchema(
        "efficiency",
        "how well the devices were used",
        (
            _real("mfu", "1", "model FLOPs over time and peak", null=True),
            _real("hfu", "1", "the same with recomputation", null=True),
            _real("flops_per_step", "FLOP per step", "model FLOPs of the whole job", null=True),
            _text("flops_source", "given, run.json or recorded shapes", null=True),
            _real("peak_tflops", "TFLOP/s", "peak of one device", null=True),
            _text("peak_source", "given, or the chip", null=True),
            _text("peak_precision", "operand type that the peak is of", null=True),
            _text("precision", "operand type of most matrix products", null=True),
        ),
        queried=False,
    ),
    TableSchema(
        "steadiness",
        "how steady the steps are, by the step logs or the recorded steps; warm-up excluded where not stated",
        (
            _text("source", "step logs or recorded steps"),
            _int("num_steps", "steps", "all steps, warm-up included"),
            _int("warm_up_steps", "steps", "length of the warm-up"),
            _int("warm_up_ns", "ns", "time it took beyond as many settled steps"),
            _int("median_ns", "ns", "median step"),
            _int("mean_ns", "ns", "mean step"),
            _int("std_ns", "ns", "standard deviation"),
            _real("spread_pct", "%", "the same, of the mean"),
            _real("robust_spread_pct", "%", "the same by the median absolute deviation: without spikes"),
            _int("p10_ns", "ns", "10 % of the steps are shorter"),
            _int("p90_ns", "ns", "90 % of the steps are shorter"),
            _int("p99_ns", "ns", "99 % of the steps are shorter"),
            _int("min_ns", "ns", "shortest step"),
            _int("max_ns", "ns", "longest step"),
            _nested("over_ranks_ns", "mean and extremes of the ranks' medians", "ns", null=True),
            _real("steps_per_s", "steps/s", "by the mean, spikes included"),
            _real("samples_per_s", "samples/s", "of the whole job", null=True),
            _real("tokens_per_s", "tokens/s", "of the whole job", null=True),
            _nested("drift", "change from the first to the last step by the median slope, with its 95 % interval"),
            _nested("spikes", "the largest steps above the median of those around them"),
            _int("num_spikes", "steps", "number of such steps"),
            _int("spikes_ns_per_step", "ns", "cost of all of them, spread over the settled steps"),
            _int("spike_every", "steps", "steps between them, where that is regular", null=True),
        ),
        queried=False,
    ),
    TableSchema(
        "devices",
        "each rank's device through the job, by the recorder's samples",
        (
            _RANK,
            _text("device", "its name", null=True),
            _int("num_samples", "samples", "number of samples", title="samples"),
            _real("sm_clock_mhz", "MHz", "median while in use", null=True),
            _real("max_sm_clock_mhz", "MHz", "the highest possible", null=True),
            _real("power_w", "W", "median while in use", null=True),
            _real("power_limit_w", "W", "limit of the driver", null=True),
            _real("temperature_c", "°C", "the highest", null=True),
            _real("utilization_pct", "%", "mean", null=True),
            _real("throttled_pct", "%", "samples with a reason that costs speed", null=True),
            _nested("throttle_reasons", "percent of the samples by reason"),
            _int("others_bytes", "bytes", "memory in use by other processes", null=True),
            _nested("shared_with", "other ranks of this job on the same device"),
            _text("held_back", "what slows the device in a good part of the samples", null=True),
        ),
        queried=False,
    ),
    TableSchema(
        "collectives_live",
        "operations of each group over the whole job; bandwidths include the wait for later ranks",
        (
            _RANK,
            _text("op", "operation", title="collective"),
            _text("group", "its name"),
            _text("group_desc", "what the job calls it"),
            _int("group_size", "ranks", "ranks in the group", null=True),
            _int("count", "calls", "number of calls", title="calls"),
            _int("size_bytes", "bytes", "of all calls", null=True),
            _int("time_ns", "ns", "of all calls", null=True),
            _real("algbw_gb_per_s", "GB/s", "algorithm bandwidth", null=True, title="algbw"),
            _real("busbw_gb_per_s", "GB/s", "bus bandwidth", null=True, title="busbw"),
            _real("best_busbw_gb_per_s", "GB/s", "of the fastest call", null=True, title="best busbw"),
        ),
        queried=False,
    ),
    TableSchema(
        "nccl",
        "NCCL's own log of each rank",
        (
            _RANK,
            _text("version", "of NCCL", null=True),
            _int("channels", "channels", "channels of a collective", null=True),
            _nested("transports", "connections by kind: P2P/CUMEM, SHM/direct, NET/Socket, NET/IB/GDRDMA, ..."),
            _text("network", "network in use", null=True),
            _nested("warnings", "first warnings"),
            _text("host", "machine", null=True),
            _int("num_ranks", "ranks", "ranks of the job", null=True),
            _int("num_nodes", "nodes", "machines of the job", null=True),
            _int("local_ranks", "ranks", "ranks of this machine", null=True),
            _real("max_bw_gb_per_s", "GB/s", "widest path by NCCL's model of the topology", null=True),
            _real("total_bw_gb_per_s", "GB/s", "all paths by that model", null=True),
            _nested("links", "widest link of each kind in the topology, in GB/s"),
            _nested("interfaces", "network interfaces"),
            _bool("infiniband_missing", "no usable InfiniBand was found"),
            _nested("settings", "variables of the environment that NCCL read"),
            _nested("communicators", "communicators of the rank, with the time to make them (from 2.19)"),
            _int("num_rings", "rings", "rings of the topology", null=True),
            _nested("choices", "algorithm, protocol and channels by operation and size (channels from 2.24)"),
            _nested("collectives", "calls by operation and size of the full buffer"),
            _int("num_lines", "lines", "lines of the log"),
        ),
        queried=False,
    ),
    TableSchema(
        "costly_lines",
        "the lines that hold most of the critical path",
        (
            _text("file", "source file"),
            _int("line", "number", "the line"),
            _text("module", "module that holds most of its time", null=True),
            _real("critical_ns", "ns per step", "time on the critical path", title="critical path"),
            _real("pct", "%", "of the step", null=True, digits=3, title="of the step"),
            _real(
                "saving_ns",
                "ns per step",
                "saving if removed with all it causes",
                null=True,
                title="saving if removed",
            ),
            _bool("trains", "it runs part of the model, of backward or of the optimizer", null=True),
            _bool("sampled", "known by samples of the threads alone"),
        ),
        queried=False,
    ),
    TableSchema(
        "attempts",
        "attempts of a job",
        (
            _text("started", "when it began", null=True),
            _text("ended", "when it ended", null=True),
            _text("reason", "why it ended", title="ended by"),
            _text("name", "folder of the attempt", key="run", title="run"),
            _int("steps", "steps", "steps that it took"),
            _int("steps_lost", "steps", "steps repeated after it", null=True),
            _int("saves", "checkpoints", "checkpoints that it wrote", title="checkpoints"),
            _int("evaluations", "evaluations", "evaluations that it ran"),
        ),
        queried=False,
    ),
    TableSchema(
        "kinds",
        "steps of a serving engine by kind",
        (
            _text("kind", "prefill, decode or mixed"),
            _int("steps", "steps", "recorded steps"),
            _int("step_ns", "ns", "median", title="step"),
            _real("requests_per_step", "requests", "mean", null=True, title="requests per step"),
            _real("tokens_per_step", "tokens", "mean", null=True, title="tokens per step"),
            _real("tokens_per_s", "tokens/s", "over these steps", null=True, title="tokens/s"),
        ),
        queried=False,
    ),
)

# all tables by name, and those for queries
SCHEMAS = {table.name: table for table in _TABLES}
TABLES = {
    name: TableSchema(name, table.meaning, tuple(c for c in table.columns if not c.is_nested))
    for name, table in SCHEMAS.items()
    if table.queried
}
