"""Every table of a run and every column of it: dtype, unit and meaning. The docs page is generated from this file.

`docs/tables.md` is made from it by `tools/write_tables.py`. Columns marked `null` are empty where nothing is known.
"""

from stepscope.records import dataclass


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    #: int64, float64, bool or text
    dtype: str
    unit: str
    meaning: str
    #: whether it may be empty: unknown, or not of this row
    null: bool = False


@dataclass(frozen=True)
class TableSchema:
    """One table of a run."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


def _text(name: str, meaning: str, *, null: bool = False) -> Column:
    return Column(name, "text", "", meaning, null)


def _int(name: str, unit: str, meaning: str, *, null: bool = False) -> Column:
    return Column(name, "int64", unit, meaning, null)


def _real(name: str, unit: str, meaning: str, *, null: bool = False) -> Column:
    return Column(name, "float64", unit, meaning, null)


def _bool(name: str, meaning: str, *, null: bool = False) -> Column:
    return Column(name, "bool", "", meaning, null)


_RANK = _int("rank", "rank", "rank of the job")
_STEP = _int("step", "number", "number of the recorded step", null=True)
_START = _int("start_ns", "ns", "start on the clock that all ranks share, since 1970")
_DUR = _int("dur_ns", "ns", "duration")

_OWNER_COSTS = (
    _real("device_ns", "ns per step", "kernels, copies and sets"),
    _real("host_ns", "ns per step", "the host's time, waiting included"),
    _real("blocked_ns", "ns per step", "of `host_ns`: waiting for the device, or for a collective without one"),
    _real("comm_ns", "ns per step", "communication, waiting for late ranks included"),
    _real("exposed_ns", "ns per step", "communication while the device computed and copied nothing"),
    _real("backward_device_ns", "ns per step", "of `device_ns`: in backward passes"),
    _real("backward_host_ns", "ns per step", "of `host_ns`: in backward passes"),
    _real("own_device_ns", "ns per step", "of `device_ns`: not in a row inside it"),
    _real("own_host_ns", "ns per step", "of `host_ns`: not in a row inside it"),
    _real("step_pct", "%", "the longer of host and device time (with communication), of the recorded step", null=True),
    _real("saving_ns", "ns per step", "saving if removed, for the first ten lines", null=True),
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
            _int("row", "row", "row in the rank's event table (`docs/trace-columns.md`)"),
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
            _text("device", "chip", null=True),
            _int("num_events", "events", "events in the trace"),
            _int("num_steps", "steps", "recorded steps"),
            _int("window_ns", "ns", "length of the window", null=True),
            _int("compute_ns", "ns", "union of kernels that are not communication", null=True),
            _int("comm_ns", "ns", "union of communication", null=True),
            _int("memory_ns", "ns", "union of copies and sets", null=True),
            _int("exposed_comm_ns", "ns", "communication outside of compute, copies and sets", null=True),
            _int("idle_ns", "ns", "window outside of all three", null=True),
            _real("overlap_pct", "%", "share of communication under compute", null=True),
            _int("wait_ns", "ns", "union of waits for later ranks", null=True),
            _int("transfer_ns", "ns", "communication that is no wait", null=True),
            _int("unmatched_comm_ns", "ns", "communication without a counterpart", null=True),
            _int("clock_offset_ns", "ns", "what is added to the rank's own clock", null=True),
            _real("clock_uncertainty_ns", "ns", "half-width that should hold the true offset", null=True),
            _text("path", "file of the trace"),
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
            _real("ns_per_step", "ns", "time of the part"),
            _real("pct", "%", "share of the step"),
            _real("profiled_ns", "ns", "before subtracting profiler overhead"),
        ),
    ),
    TableSchema(
        "waterfall",
        "from the chips' peak to what was achieved; empty where FLOPs, peak or step are unknown",
        (
            _text("loss", "name of the loss; the last row is `achieved`"),
            _real("pct_of_peak", "%", "share of the peak", null=True),
            _real("ns_per_step", "ns", "the same as time", null=True),
            _real("plus_minus", "%", "about 95 % of `pct_of_peak`", null=True),
        ),
    ),
    TableSchema(
        "kernels",
        "kernels by name over the whole window; count and total are means per rank",
        (
            _text("name", "name"),
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
            _text("bound", "compute-bound, memory-bound or latency", null=True),
            _text("bound_from", "measured, shapes or family", null=True),
            _real("occupancy_pct", "%", "achieved occupancy where measured, else the profiler's estimate", null=True),
            _text("occupancy_from", "measured or estimated", null=True),
            _real("sm_pct", "%", "of the multiprocessors' peak, by Nsight Compute", null=True),
            _real("dram_pct", "%", "of the memory's peak, by Nsight Compute", null=True),
            _real("tensor_pct", "%", "of the tensor pipe's peak, by Nsight Compute", null=True),
            _text("stall", "what its warps waited for most, by Nsight Compute", null=True),
            _real("stall_share", "1", "of all their waiting", null=True),
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
            _text("op", "operation"),
            _text("process_group", "process group"),
            _int("group_size", "ranks", "ranks in the group", null=True),
            _int("count", "calls", "calls of one rank"),
            _int("size_bytes", "bytes", "all calls of one rank", null=True),
            _real("wait_ns", "ns", "waiting for later ranks", null=True),
            _real("transfer_ns", "ns", "the rest", null=True),
            _real("exposed_ns", "ns", "outside of compute and copies"),
            _real("algbw_gb_per_s", "GB/s", "algorithm bandwidth", null=True),
            _real("busbw_gb_per_s", "GB/s", "bus bandwidth", null=True),
            _int("late_rank", "rank", "the rank that the others waited for longest", null=True),
            _int("unmatched", "calls", "calls without a counterpart"),
        ),
    ),
    TableSchema(
        "stragglers",
        "ranks that others wait for",
        (
            _RANK,
            _text("cause", "host, device, data, load or network"),
            _real("late_ns_per_step", "ns", "own time beyond the median of the others'"),
            _int("steps_late", "steps", "steps in which it was late"),
            _int("num_steps", "steps", "steps that were judged"),
            _real("score", "1", "leave-one-out score"),
            _real("slowdown", "1", "own time against the mean of the others'"),
            _bool("persistent", "late in most steps"),
        ),
    ),
    TableSchema(
        "findings",
        "what to fix, the largest saving first",
        (
            _text("id", "id of the finding"),
            _text("title", "one line"),
            _text("ranks", "ranks it names, separated by commas"),
            _real("cost_ns", "ns", "time per step that shows it", null=True),
            _real("saving_ns", "ns", "what it adds per step once those above are fixed"),
            _real("low_ns", "ns", "alone_ns is at least"),
            _real("high_ns", "ns", "alone_ns is at most"),
            _real("saving_pct", "%", "of the step"),
            _real("alone_ns", "ns", "saved if it were the only fix"),
            _real("confidence", "1", "fixed rating of the rule, 0 to 1; not measured in this run"),
            _text("cause", "why"),
            _text("remedy", "what to change"),
        ),
    ),
    TableSchema(
        "evidence",
        "the numbers behind the findings",
        (
            _text("finding", "id of the finding"),
            _text("what", "what was measured"),
            _text("value", "the number, or a name"),
            _text("unit", "its unit"),
            _text("place", "rank, step, kernel or operator"),
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
            _real("ns_per_step", "ns", "time on the path"),
            _real("pct", "%", "share of the path"),
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
            _bool("is_user", "the user's own; else a library's with no line of the user's above it"),
            _text("module", "module that holds most of its time", null=True),
            *_OWNER_COSTS,
            _text("source", "the line's text, if recorded", null=True),
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
)

# all tables by name
TABLES = {table.name: table for table in _TABLES}
