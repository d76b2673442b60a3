"""How much memory did each rank use, when was the peak and what made it up, and does it grow?

From the profiler's memory events where they were recorded (every allocation of the window), and from the step logs
(a sample per step, over the whole job). *Cache* is memory the allocator has reserved and no tensor holds; how much
of it is fragmented cannot be told from totals.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.collective_costs import over_ranks
from stepscope.analyze.host_calls import host_calls
from stepscope.analyze.memory_events import (
    ACTIVATIONS,
    NOBODY,
    NOT_HERE,
    OTHER,
    CategorisedBlocks,
    Curves,
    FromBefore,
    Holder,
    MemoryEvents,
    blocks_of,
    categorised,
    category_curves,
    held_events,
    holders,
    largest_moments,
    operators_at,
    readable,
    source_lines_at,
    why_unknown,
)
from stepscope.analyze.ownership import Ownership
from stepscope.analyze.phases import Passes, Phase
from stepscope.analyze.steadiness import SIGNIFICANT
from stepscope.dataclass import dataclass
from stepscope.run.device_work import Rows
from stepscope.run.load import Run
from stepscope.run.rank import Rank
from stepscope.run.step_log import StepLog
from stepscope.stats.robust import Spread, median, trend
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

# Growth from step to step: a leak is a significant slope.


@dataclass(frozen=True)
class Growth:
    """How an amount of memory moves over the steps."""

    bytes_per_step: float
    low_bytes_per_step: float
    #: 95 % interval
    high_bytes_per_step: float
    p_value: float
    #: over the steps looked at, by the slope
    total_bytes: float
    num_steps: int
    #: significant, upwards, and at least half a percent of the level
    leaks: bool


def growth(steps: npt.ArrayLike, amounts: npt.ArrayLike) -> Growth | None:
    """Return the growth of an amount sampled at the ends of steps; NaN where a step has no sample. None below eight."""
    x, y = np.asarray(steps, float), np.asarray(amounts, float)
    known = np.isfinite(y)
    x, y = x[known], y[known]
    # the first steps create optimizer state and warm the cache; on long runs a tenth of them is left out
    settled = min(max(3, int(0.1 * len(x))), len(x) // 3)
    x, y = x[settled:], y[settled:]
    found = trend(x, y)
    if found is None:
        return None
    total = found.slope * float(x[-1] - x[0])
    significant = found.p_value < SIGNIFICANT and found.low > 0
    return Growth(
        bytes_per_step=found.slope,
        low_bytes_per_step=found.low,
        high_bytes_per_step=found.high,
        p_value=found.p_value,
        total_bytes=total,
        num_steps=len(x),
        leaks=significant and total >= 0.005 * median(y),
    )


# Leak suspects: lines whose allocations of every step stay alive.


@dataclass(frozen=True)
class Leak:
    """A line that keeps, of several steps, what it allocated there outside backward and optimizer."""

    name: str
    steps: int
    size_bytes: int
    bytes_per_step: float


def _kept_over_steps(categories: CategorisedBlocks, step: npt.NDArray[np.integer], *, last_step: int) -> Int64s:
    """Return the blocks that were allocated in a step before the last one, and are there when the window ends.

    `step` is that of each event. Gradients and optimizer state are left out: they are kept on purpose.
    """
    blocks = categories.blocks
    kept = (blocks.born != NOT_HERE) & (blocks.died == NOT_HERE)
    kept &= np.isin(categories.category, (ACTIVATIONS, OTHER))
    rows = np.flatnonzero(kept)
    born_in = step[blocks.born[rows]]
    return rows[(born_in >= 0) & (born_in < last_step)]


def leaks(names: Sequence[str | None], step: npt.NDArray[np.integer], size_bytes: Int64s) -> tuple[Leak, ...]:
    """Return the names that keep something of at least two steps, the most first."""
    kept: dict[str, Counter[int]] = {}
    for name, of_step, size in zip(names, step.tolist(), size_bytes.tolist(), strict=True):
        if name:
            kept.setdefault(name, Counter())[of_step] += size
    found = [
        Leak(name, len(steps), sum(steps.values()), sum(steps.values()) / len(steps))
        for name, steps in kept.items()
        if len(steps) >= 2
    ]
    return tuple(sorted(found, key=lambda leak: -leak.size_bytes)[:_MAX_HOLDERS])


# Lines and modules that allocated blocks.
#
# By the owners that the job recorded (or the frames in its trace); without those, by the Python frame around.

# of one rank; asked for only where there is memory to own
OwnersOf = Callable[[], Ownership | None]


def _line_names(rank: Rank, owned: Ownership | None, rows: Rows) -> list[str | None]:
    if owned is None:
        trace = rank.trace
        found = source_lines_at(rank, trace["tid"][rows], trace["ts_ns"][rows]).tolist()
        return [None if i == NOBODY else trace.strings[i] for i in found]
    names = [f"{f.file}:{f.line} ({f.function})" for f in owned.frames]
    found = owned.stacks.innermost_user[owned.of_rows(rows).stack].tolist()
    return [names[frame] if frame >= 0 else None for frame in found]


def _module_names(owned: Ownership | None, rows: Rows) -> list[str | None]:
    if owned is None:
        return [None] * len(rows)
    return [owned.modules[module] if module >= 0 else None for module in owned.of_rows(rows).module.tolist()]


def _held_by(names: Sequence[str | None], size_bytes: Int64s, *, most: int) -> tuple[Holder, ...]:
    held: Counter[str] = Counter()
    blocks: Counter[str] = Counter()
    for name, size in zip(names, size_bytes.tolist(), strict=True):
        if name:
            held[name] += size
            blocks[name] += 1
    return tuple(Holder(name, size, blocks[name]) for name, size in held.most_common(most))


_MAX_HOLDERS = 12
_SINCE_START = (
    "on the host the profiler counts from its own start: `peak` leaves out weights, optimizer state and whatever else "
    "was there before; record with --memory to have them counted"
)
_RELATIVE = "the events carry no totals: `peak` counts only what the window allocated"
_ALLOCATOR_CALLS = ("cudaMalloc", "cudaFree", "hipMalloc", "hipFree", "cuMemCreate", "cuMemRelease")


@dataclass(frozen=True)
class Moment:
    """The peak of the window."""

    allocated_bytes: int
    reserved_bytes: int | None
    #: since the first recorded step began
    time_ns: int
    #: number of the step, None outside of all
    step: int | None
    phase: str
    #: outermost operator that was allocating
    operator: str | None
    #: see `categories`; what is known sums to `allocated_bytes`. None where blocks could not be told
    by_category: dict[str, int | None] | None
    #: the operators whose blocks are alive, largest first
    by_operator: tuple[Holder, ...]
    #: the same by line of the user's code; empty where neither owners nor python frames were recorded
    by_source_line: tuple[Holder, ...]
    #: the same by module; empty where no owners were recorded
    by_module: tuple[Holder, ...]


@dataclass(frozen=True)
class StepMemory:
    """One recorded step."""

    step: int
    start_bytes: int
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True)
class Timeline:
    """Memory over the window, thinned to the largest moments of equal slices of events."""

    #: since the first recorded step began
    time_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] | None
    by_category: dict[str, tuple[int, ...]] | None


@dataclass(frozen=True)
class RankMemory:
    """Memory of one rank. None is unknown; `reasons` says why."""

    rank: int
    #: ordinal of the device, -1 where only the host's memory was recorded
    device: int | None
    device_total_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    #: most reserved (allocated where that is unknown) against the device's memory
    peak_pct_of_total: float | None
    #: this rank's share, as the job itself counted it; part of `kept`
    parameter_bytes: int | None
    #: reserved and held by no tensor, at the peak
    cache_bytes: int | None
    #: calls per step that get memory from the device or give it back; about 0 in a settled job
    allocator_calls: float | None
    #: how often the cache had to be emptied, over the logged steps
    allocator_retries: int | None
    host_peak_bytes: int | None
    peak: Moment | None
    steps: tuple[StepMemory, ...]
    timeline: Timeline | None
    #: of allocated memory at the ends of steps
    growth: Growth | None
    host_growth: Growth | None
    #: lines (operators where those are unknown) that keep what they allocate in the steps of the window
    leaks: tuple[Leak, ...]
    reasons: dict[str, str]


@dataclass(frozen=True)
class MemoryView:
    """Memory of the run."""

    ranks: tuple[RankMemory, ...]
    fullest_rank: int | None
    over_ranks: dict[str, Spread]


def memory_view(
    run: Run, *, passes: Sequence[Passes], logs: Sequence[StepLog] = (), owners: Sequence[OwnersOf] = ()
) -> MemoryView | None:
    """Return the memory of a run, None where neither memory events nor samples were recorded.

    `passes` are those of each rank (`Strategy.passes`), `owners` gives those who own what it did.
    """
    by_rank = {log.rank: log for log in logs}
    each = zip(run.ranks, passes, owners or [lambda: None] * len(run.ranks), strict=True)
    ranks = [
        _rank_memory(rank, found, by_rank.get(rank.rank), held_events(run, rank), owned) for rank, found, owned in each
    ]
    known = [r for r in ranks if r.peak_allocated_bytes is not None or r.host_peak_bytes is not None or r.peak]
    if not known:
        return None

    def fullness(one: RankMemory) -> int:
        return one.peak_reserved_bytes or one.peak_allocated_bytes or (one.peak.allocated_bytes if one.peak else 0)

    return MemoryView(tuple(known), max(known, key=fullness).rank, over_ranks(known))


def _rank_memory(
    rank: Rank, found: Passes, log: StepLog | None, held: tuple[MemoryEvents | None, FromBefore], owners: OwnersOf
) -> RankMemory:
    events, older = held
    blocks = blocks_of(events) if events else None
    categories = categorised(events, blocks, found, rank.steps) if events and blocks is not None else None
    curves = category_curves(events, categories, older) if events and categories else None
    owned = owners() if categories else None
    peak = _peak(rank, events, categories, found, curves, owned) if events else None
    whole = peak if events is not None and events.before_bytes is not None and older.is_known else None
    allocated = _larger(whole.allocated_bytes if whole else None, _most(log, "peak_allocated_bytes"))
    in_trace = int(events.reserved_bytes.max()) if events and events.reserved_bytes is not None else None
    reserved = _larger(in_trace, _most(log, "peak_reserved_bytes"))
    total = _device_total(rank, events.device if events else None)
    filled = reserved if reserved is not None else allocated
    steps = _steps(rank, events) if events else ()
    retries = _logged(log, "allocator_retries")
    grown = _grown(log, "allocated_bytes") or growth([s.step for s in steps], [s.end_bytes for s in steps])
    return RankMemory(
        rank=rank.rank,
        device=events.device if events else None,
        device_total_bytes=total,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak_pct_of_total=100 * filled / total if total and filled else None,
        parameter_bytes=older.weights_bytes,
        cache_bytes=peak.reserved_bytes - peak.allocated_bytes if peak and peak.reserved_bytes is not None else None,
        allocator_calls=_allocator_calls(rank),
        allocator_retries=int(retries[-1] - retries[0]) if len(retries) else None,
        host_peak_bytes=_most(log, "host_peak_bytes"),
        peak=peak,
        steps=steps,
        timeline=_timeline(rank, events, curves) if events else None,
        growth=grown,
        host_growth=_grown(log, "host_bytes"),
        leaks=_leaks(rank, events, categories, owned) if events and categories else (),
        reasons={
            **_reasons(events, log, older, grown),
            **why_unknown(peak.by_category if peak else None, seen_whole=older.seen_whole),
        },
    )


def _peak(
    rank: Rank,
    events: MemoryEvents,
    categories: CategorisedBlocks | None,
    found: Passes,
    curves: Curves | None,
    owned: Ownership | None,
) -> Moment:
    at = int(events.allocated_bytes.argmax())
    moment, thread = events.time_ns[at : at + 1], events.thread[at : at + 1]
    calls = host_calls(rank)
    operator = int(operators_at(calls, thread, moment)[0])
    step = int(rank.steps.of(moment)[0])
    by_operator: tuple[Holder, ...] = ()
    by_line: tuple[Holder, ...] = ()
    by_module: tuple[Holder, ...] = ()
    if categories is not None:
        blocks = categories.blocks
        alive = blocks.alive(at) & (blocks.born != NOT_HERE)
        born, size = blocks.born[alive], blocks.size_bytes[alive]
        ids = operators_at(calls, events.thread[born], events.time_ns[born])
        by_operator = holders(rank, ids, size, most=_MAX_HOLDERS)
        by_line, by_module = (
            _held_by(names, size, most=_MAX_HOLDERS)
            for names in (_line_names(rank, owned, events.row[born]), _module_names(owned, events.row[born]))
        )
    by_category = None
    if curves and categories and categories.kept_bytes is not None:
        by_category = {name: None if curve is None else int(curve[at]) for name, curve in curves.items()}
    return Moment(
        allocated_bytes=int(events.allocated_bytes[at]),
        reserved_bytes=int(events.reserved_bytes[at]) if events.reserved_bytes is not None else None,
        time_ns=int(moment[0]) - _begin(rank, events),
        step=int(rank.steps.number[step]) if step >= 0 else None,
        phase=Phase(int(found.at(moment, thread)[0])).name.lower(),
        operator=readable(rank.trace.strings[operator]) if operator >= 0 else None,
        by_category=by_category,
        by_operator=by_operator,
        by_source_line=by_line,
        by_module=by_module,
    )


def _leaks(
    rank: Rank, events: MemoryEvents, categories: CategorisedBlocks, owned: Ownership | None
) -> tuple[Leak, ...]:
    step = rank.steps.of(events.time_ns)
    kept = _kept_over_steps(categories, step, last_step=len(rank.steps) - 1)
    born = categories.blocks.born[kept]
    names = _line_names(rank, owned, events.row[born])
    if not any(names):
        ids = operators_at(host_calls(rank), events.thread[born], events.time_ns[born]).tolist()
        names = [readable(rank.trace.strings[i]) if i >= 0 else None for i in ids]
    return leaks(names, step[born], categories.blocks.size_bytes[kept])


def _begin(rank: Rank, events: MemoryEvents) -> int:
    return int(rank.steps.start_ns[0]) if len(rank.steps) else int(events.time_ns[0])


def _steps(rank: Rank, events: MemoryEvents) -> tuple[StepMemory, ...]:
    before = np.concatenate(([int(events.allocated_bytes[0] - events.change_bytes[0])], events.allocated_bytes))
    first = np.searchsorted(events.time_ns, rank.steps.start_ns)
    last = np.searchsorted(events.time_ns, rank.steps.end_ns)
    return tuple(
        StepMemory(int(number), int(before[a]), int(before[a : b + 1].max()), int(before[b]))
        for number, a, b in zip(rank.steps.number, first, last, strict=True)
    )


def _timeline(rank: Rank, events: MemoryEvents, curves: Curves | None) -> Timeline:
    at = largest_moments(events.allocated_bytes)
    by_category = None
    if curves is not None:
        by_category = {name: tuple(curve[at].tolist()) for name, curve in curves.items() if curve is not None}
    return Timeline(
        time_ns=tuple((events.time_ns[at] - _begin(rank, events)).tolist()),
        allocated_bytes=tuple(events.allocated_bytes[at].tolist()),
        reserved_bytes=None if events.reserved_bytes is None else tuple(events.reserved_bytes[at].tolist()),
        by_category=by_category,
    )


def _larger(a: int | None, b: int | None) -> int | None:
    known = [x for x in (a, b) if x is not None]
    return max(known) if known else None


def _device_total(rank: Rank, device: int | None) -> int | None:
    listed = rank.trace.header.get("deviceProperties")
    wanted = device if device is not None and device >= 0 else int(rank.work.device[0]) if rank.has_device else None
    for entry in listed if isinstance(listed, list) else []:
        total = entry.get("totalGlobalMem") if isinstance(entry, dict) and entry.get("id") == wanted else None
        if isinstance(total, int) and total > 0:
            return total
    return None


def _allocator_calls(rank: Rank) -> float | None:
    if not rank.has_device or not len(rank.steps):
        return None
    rows = rank.rows_named(lambda s: s.startswith(_ALLOCATOR_CALLS), EventKind.RUNTIME)
    return int((rank.steps.of(rank.trace["ts_ns"][rows]) >= 0).sum()) / len(rank.steps)


def _logged(log: StepLog | None, name: str) -> npt.NDArray[np.float64]:
    values = log.column(f"memory.{name}") if log is not None else np.empty(0)
    return values[np.isfinite(values)]


def _most(log: StepLog | None, name: str) -> int | None:
    values = _logged(log, name)
    return int(values.max()) if len(values) else None


def _grown(log: StepLog | None, name: str) -> Growth | None:
    return growth(log.step, log.column(f"memory.{name}")) if log is not None else None


def _reasons(
    events: MemoryEvents | None, log: StepLog | None, older: FromBefore, grown: Growth | None
) -> dict[str, str]:
    no_totals = events is not None and events.before_bytes is None
    since_start = events is not None and not no_totals and not older.is_known
    return {
        name: why
        for applies, name, why in (
            (True, "fragmentation", "totals do not tell how free memory is cut up; a memory snapshot does"),
            (events is None, "peak", "the trace holds no memory events: record with memory profiling on"),
            (no_totals, "by_category", "the memory events carry no totals, so what was there before them is unknown"),
            (no_totals, "peak_allocated_bytes", _RELATIVE),
            (since_start, "peak_allocated_bytes", _SINCE_START),
            (
                events is not None and events.address is None,
                "by_category",
                "the memory events carry no addresses, so blocks cannot be told",
            ),
            (grown is None, "growth", "it takes eight steps with samples, after the first ones, to tell a slope"),
            (log is None, "allocator_retries", "no step log: retries are counted there"),
            (
                older.weights_bytes is None,
                "parameter_bytes",
                "the run's description does not give the model's parameters",
            ),
        )
        if applies
    }
