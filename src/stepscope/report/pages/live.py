"""A running job: as a page and a screen, and as one line for a log, from the JSON of `stepscope watch`."""

from collections.abc import Collection, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from stepscope.contract.step_line import BACKWARD, DATA_LOADING, FORWARD, GRADIENT_SYNC, OPTIMIZER
from stepscope.records import Row
from stepscope.report.sheet import Document, Section, Sheet, table_of
from stepscope.units import ms, printable, readable_bytes

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing

_SHORT = {
    DATA_LOADING: "data",
    FORWARD: "forward",
    BACKWARD: "backward",
    GRADIENT_SYNC: "sync",
    OPTIMIZER: "optimizer",
}
_MAX_RANKS = 16
_MAX_REGIONS = 6
# steps of a rank that are drawn as bars in its row
_BARS = 24


def live_sheet(name: str, document: Document, picture: Row, *, said: Collection[str] = ()) -> Sheet:
    """Return the page: alarms and hung ranks first, then the ranks, late and silent ones before the others."""
    ranks = _most_telling(document)
    all_recent = {rank.rank: rank.recent for rank in picture.ranks}
    recent = {rank["rank"]: all_recent[rank["rank"]] for rank in ranks}
    bars = _bars({rank: [ns for _, ns in steps] for rank, steps in recent.items()})
    table = table_of(
        ranks,
        ("rank", "text", lambda one: f"{one['rank']} ({one['ended']})" if one["ended"] else str(one["rank"])),
        ("step", "count", "step"),
        ("step time", "ms", "step_ms"),
        ("late", "signed_ms", lambda one: one["late"] and one["late"]["late_ms"]),
        ("recent steps", "name", lambda one: bars.get(one["rank"])),
        ("memory", "bytes", _memory),
        *((_region(one), "ms", lambda rank, one=one: rank["regions_ms"].get(one)) for one in _regions(document)),
    )
    count = len(document["ranks"])
    state = "has ended" if document["over"] else _pace_text(document)
    step = "step ?" if document["step"] is None else f"step {document['step']:,}"
    of = (f"{len(ranks)} of {count} ranks",) if len(ranks) < count else ()
    lines = {"Alarms": [one["text"] for one in document["alarms"]], "Hung ranks": document["stalls"]}
    news = {"So far": said}
    first, last = (
        [Section(title.lower().replace(" ", "-"), title, tuple(found)) for title, found in group.items() if found]
        for group in (lines, news)
    )
    return Sheet(
        name,
        (f"{count} rank{'s' * (count != 1)}", step, state),
        (),
        (*first, Section("ranks", "Ranks", of, lambda: _step_times(recent), table, most=_MAX_RANKS), *last),
        (f"MFU: {document['mfu_reason']}",) if document["mfu"] is None and document["mfu_reason"] else (),
    )


def plain_line(document: Document) -> str:
    """Return the job at one moment as one line."""
    ranks = document["ranks"]
    sums = {name: sum(rank["regions_ms"].get(name, 0) for rank in ranks) for name in _regions(document)}
    regions = [f"{_region(name)} {total_ms / len(ranks):.1f}" for name, total_ms in sums.items() if total_ms]
    memory = max((_memory(rank) or 0 for rank in ranks), default=0)
    late = [rank for rank in _most_telling(document) if rank["late"] and rank["late"]["is_late"]]
    parts = [
        "step ?" if document["step"] is None else f"step {document['step']}",
        _pace_text(document),
        *([f"{', '.join(regions)} ms"] if regions else []),
        *([f"memory {readable_bytes(memory)}"] if memory else []),
        *(f"rank {rank['rank']} is {rank['late']['late_ms']:.1f} ms late per step" for rank in late),
    ]
    return "; ".join(parts)


def _pace_text(document: Document) -> str:
    if document["steps_per_s"] is None or document["step_ms"] is None:
        return "no step yet"
    if document["stands_still"]:
        return "standing still"
    parts = [f"{document['steps_per_s']:.2f} steps/s", f"{document['step_ms']:.1f} ms per step"]
    if document["tokens_per_s"] is not None:
        parts.append(f"{document['tokens_per_s']:,.0f} tokens/s")
    if document["mfu"] is not None:
        parts.append(f"MFU {100 * document['mfu']:.1f} %")
    return ", ".join(parts)


def _most_telling(document: Document) -> list[Document]:

    def order(rank: Document) -> tuple[bool, float, int]:
        late = rank["late"]["late_ms"] if rank["late"] and rank["late"]["is_late"] else 0
        return rank["stall"] is None, -late, rank["rank"]

    return sorted(document["ranks"], key=order)[:_MAX_RANKS]


def _regions(document: Document) -> list[str]:
    longest: dict[str, float] = {}
    for rank in document["ranks"]:
        for name, time_ms in rank["regions_ms"].items():
            longest[name] = max(longest.get(name, 0), time_ms)
    others = sorted((n for n in longest if n not in _SHORT), key=lambda n: -longest[n])
    return [*(n for n in _SHORT if n in longest), *others][:_MAX_REGIONS]


def _region(name: str) -> str:
    return _SHORT.get(name, printable(name, width=40))


def _memory(rank: Document) -> int | None:
    size_bytes: int | None = rank["device_bytes"] or rank["host_bytes"]
    return size_bytes


def _bars(times: dict[int, list[int]]) -> dict[int, str]:
    """Return the newest steps of each rank as a line of bars, all on one scale, with the shortest and the longest."""
    newest = {rank: one[-_BARS:] for rank, one in times.items() if one}
    every = list(chain.from_iterable(newest.values()))
    high = max(every, default=0)
    low = min(min(every, default=0), round(0.9 * high))  # a change of a few percent is drawn as one
    steps = "▁▂▃▄▅▆▇█"
    return {
        rank: "".join(steps[round(7 * (ns - low) / (high - low or 1))] for ns in one)
        + f" {ms(min(one)):.0f}–{ms(max(one)):.0f}"  # noqa: RUF001
        for rank, one in newest.items()
    }


def _step_times(recent: dict[int, Sequence[tuple[int, int]]]) -> "Drawing | None":
    from stepscope.report.charts import COLOURS, STEP, WIDE, Axis, Line, line_chart

    lines = [
        Line(f"rank {rank}", [(step, ms(ns)) for step, ns in steps], colour)
        for (rank, steps), colour in zip(recent.items(), COLOURS, strict=False)
        if len(steps) > 1
    ]
    title = "Newest steps of the ranks"
    return line_chart(title, lines, Axis("step", "count", zero=False), STEP, width=WIDE) if lines else None
