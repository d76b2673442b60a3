"""The timeline as Chrome's JSON: what chrome://tracing, Perfetto and most other viewers open.

Times are microseconds with three decimals, since `baseTimeNanoseconds`: exact to the nanosecond, and small enough
that no reader's floating point loses any of it. Each lane is a thread, its numbers unlike those of any process.
"""

from collections.abc import Iterator
from itertools import chain

from stepscope.report.timeline import FIRST_PID, RankTimeline, Timeline
from stepscope.run.formats import Progress
from stepscope.trace.read import TIMELINE
from stepscope.units import json_text

_NEXT = b",\n"


def chrome_trace(timeline: Timeline, *, progress: Progress | None = None) -> Iterator[bytes]:
    """Yield the file's bytes, piece by piece. `progress` is called with the slices written and all there are."""
    first_tid = FIRST_PID + 1 + max((rank.rank for rank in timeline.ranks), default=0)
    head = {
        "schemaVersion": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": timeline.base_ns,
        "notes": timeline.notes,
        "source": TIMELINE,
    }
    yield json_text(head)[:-1].encode() + b', "traceEvents": ['
    names = [json_text(name) for name in timeline.names]
    categories = [json_text(category) for category in timeline.categories]
    flows: dict[int, list[tuple[int, int, int]]] = {}
    tid, done = first_tid, 0
    between = b"\n"
    for rank in timeline.ranks:
        for event in chain(_described(rank, tid), _slices(rank, tid, names, categories)):
            yield between + event.encode()
            between = _NEXT
        for i, ids in rank.flows.items():
            for flow in ids:
                flows.setdefault(flow, []).append((int(rank.start_ns[i]), _pid(rank), tid + int(rank.track[i])))
        tid, done = tid + len(rank.tracks), done + len(rank)
        if progress:
            progress(done, timeline.num_slices)
    for event in _flows(flows):
        yield _NEXT + event.encode()
    yield b"\n]}\n"


def _pid(rank: RankTimeline) -> int:
    return FIRST_PID + rank.rank


def _described(rank: RankTimeline, first_tid: int) -> Iterator[str]:
    of_rank = {"ph": "M", "pid": _pid(rank)}
    yield json_text({**of_rank, "name": "process_name", "args": {"name": rank.label}})
    yield json_text({**of_rank, "name": "process_sort_index", "args": {"sort_index": rank.rank}})
    for i, track in enumerate(rank.tracks):
        of_track = {**of_rank, "tid": first_tid + i}
        name = track.name if not track.lane else f"{track.name} ({track.lane + 1})"
        yield json_text({**of_track, "name": "thread_name", "args": {"name": name}})
        yield json_text({**of_track, "name": "thread_sort_index", "args": {"sort_index": i}})


def _slices(rank: RankTimeline, first_tid: int, names: list[str], categories: list[str]) -> Iterator[str]:
    pid = _pid(rank)
    begun = rank.tokens[rank.tokens >= 0]
    columns = (begun, rank.start_ns[begun], rank.dur_ns[begun], rank.track[begun] + first_tid,
               rank.name[begun], rank.category[begun])  # fmt: skip
    for i, start, dur, tid, name, category in zip(*(c.tolist() for c in columns), strict=True):
        values = rank.values.get(i)
        more = f', "args": {json_text(values)}' if values else ""
        yield (
            f'{{"ph": "X", "pid": {pid}, "tid": {tid}, "ts": {_us(start)}, "dur": {_us(dur)}, '
            f'"name": {names[name]}, "cat": {categories[category]}{more}}}'
        )


def _flows(flows: dict[int, list[tuple[int, int, int]]]) -> Iterator[str]:
    for flow, members in flows.items():
        for k, (start, pid, tid) in enumerate(sorted(members)):
            phase = "s" if k == 0 else "f" if k == len(members) - 1 else "t"
            ends = ', "bp": "e"' if phase == "f" else ""
            yield (
                f'{{"ph": "{phase}", "id": {flow}, "pid": {pid}, "tid": {tid}, "ts": {_us(start)}, '
                f'"name": "collective", "cat": "collective"{ends}}}'
            )


def _us(time_ns: int) -> str:
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
