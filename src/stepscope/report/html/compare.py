"""The page of a comparison: both budgets, what changed with its interval, and one step of each side on one scale."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.contract.names import FINDING_STATUS, LOSSES, PARTS
from stepscope.contract.names import KINDS as NAMES
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.charts import WIDE, Axis, Bar, Lane, Line, Span, bar_chart, lane_chart, line_chart
from stepscope.report.drawing import Column, Drawing, table_of, unit_text
from stepscope.report.html.page_data import KINDS, LANE_OF_KIND, Slices, grid_of
from stepscope.report.html.sheets import Section, Sheet, Values, card, sheet_page
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.pictures import PART_COLOUR
from stepscope.report.step_pictures import LANES
from stepscope.units import NS_PER_MS, NS_PER_US

Document = Mapping[str, Any]

_SIDES = ("a", "b")
_TONE = {"slower": "high", "faster": "low"}


def render_comparison(document: dict[str, Any], *, lanes: dict[str, Any] | None = None) -> str:
    """Return the page of a comparison, from its JSON and the lanes of a step of each side (`side_by_side`)."""
    runs = [len(document[side]["runs"]) for side in _SIDES] if document["basis"] != "bench" else []
    facts = [
        "benchmarks" if document["basis"] == "bench" else f"{document['basis']} steps",
        *(["one run each" if runs == [1, 1] else f"{runs[0]} and {runs[1]} runs"] if runs else []),
        "changes are B minus A, intervals 95 %",
    ]
    made = _bench_sections(document) if document["basis"] == "bench" else _run_sections(document, lanes)
    gates = [f"{'✓ holds' if g['holds'] else '✗ fails'}: {g['fail_on']}: {g['said']}" for g in document["gates"]]
    return sheet_page(
        Sheet(
            title=f"{document['a']['name']} against {document['b']['name']}",
            facts=tuple(facts),
            cards=() if document["basis"] == "bench" else _cards(document),
            sections=tuple(
                section
                for section in (Section("gates", "Gates", tuple(gates)) if gates else None, *made, _metrics(document))
                if section
            ),
            notes=tuple(document["notes"]),
        )
    )


def _cards(document: Document) -> tuple[Values, ...]:
    step, verdict = document["step_ms"], document["verdict"]
    counts = [sum(run["num_steps"] for run in document[side]["runs"]) for side in _SIDES]
    p = step["p_value"]
    between = "none" if step["low_pct"] is None else f"{step['low_pct']:+.1f} to {step['high_pct']:+.1f} %"
    return (
        card(
            "Verdict",
            verdict,
            why="" if p is None else f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}",
            tone=_TONE.get(verdict, ""),
        ),
        card(
            "Step",
            f"{unit_text(step['a'], 'ms')} → {unit_text(step['b'], 'ms')}",
            why=f"{document['basis']} steps, mean of the middle half",
        ),
        card("Change", step["change_pct"], "signed_pct", f"{_signed(step['change'])} per step", _TONE.get(verdict, "")),
        card(
            "95 % interval",
            between,
            why="too few steps" if step["low"] is None else f"{_signed(step['low'])} to {_signed(step['high'])}",
        ),
        card("Smallest detectable", step["smallest_detectable_pct"], "pct", f"with {counts[0]} and {counts[1]} steps"),
    )


_CHANGE: tuple[Column, ...] = (
    ("A", "ms", "a"), ("B", "ms", "b"), ("change", "signed_ms", "change"), ("from", "signed_ms", "low"),
    ("to", "signed_ms", "high"),
)  # fmt: skip
_CALLS: tuple[Column, ...] = (
    ("name", "text", "name"), *_CHANGE, ("A calls", "count", "a_count"), ("B calls", "count", "b_count"),
    ("A each", "ms", "a_each_ms"), ("B each", "ms", "b_each_ms"),
    ("verdict", "verdict", lambda r: None if r["what"] == "no difference found" else r["what"]),
)  # fmt: skip


def _run_sections(document: Document, lanes: Document | None) -> list[Section]:
    code, losses = document["code"], [r for r in document["waterfall"] if r["a_pct_of_peak"] or r["b_pct_of_peak"]]
    slower = f"{sum(r['change'] > 0 for r in code)} of {len(code)} got slower"
    found = [
        _budget(document),
        _section("findings", "New and resolved findings", "", document["findings"],
            ("status", "verdict", lambda f: FINDING_STATUS[f["what"]]),
            ("finding", "text", "id"), ("title", "text", "title"),
            ("ranks", "text", lambda f: ", ".join(map(str, f["ranks"])) or None),
            ("A: to save", "ms", lambda f: f["a_saving_ms"] if f["a_runs"] else None),
            ("B: to save", "ms", lambda f: f["b_saving_ms"] if f["b_runs"] else None),
            ("runs of A, B", "text", lambda f: f"{f['a_runs']}, {f['b_runs']}")),
        _timelines(lanes),
        _section("code", "Lines of code that changed",
            f"The longer of a line's own host and device time per step: {slower}.", code,
            ("line", "text", lambda r: f"{r['file']}:{r['line']}"),
            ("source", "text", lambda r: r["source"] or r["function"]), *_CHANGE, ("verdict", "verdict", "what")),
        _steps(document),
        _section("waterfall", "Where the FLOPs go, in % of peak", "", losses,
            ("loss", "text", lambda r: LOSSES[r["loss"]]), ("A", "pct", "a_pct_of_peak"),
            ("B", "pct", "b_pct_of_peak"), ("change", "signed_pct", "change_pct_of_peak"),
            ("A per step", "ms", "a_ms"), ("B per step", "ms", "b_ms")),
        *(_section(what, what.capitalize(), f"Per step, mean over ranks; {document[f'{what}_changed']} differ.",
                   sorted(document[what], key=lambda r: -abs(r["change"])), *_CALLS)
          for what in ("kernels", "operators")),
    ]  # fmt: skip
    return [section for section in found if section is not None]


def _section(id_: str, title: str, said: str, rows: Sequence[Document], *columns: Column) -> Section | None:
    return Section(id_, title, (said,) if said else (), None, table_of(rows, *columns)) if rows else None


def _budget(document: Document) -> Section | None:
    ordered = [r for r in document["budget"] if r["a"] or r["b"]]
    rows = sorted(ordered, key=lambda r: -abs(r["change"]))
    bars = [
        Bar(side.upper(), [(PART_COLOUR.get(r["part"], r["part"]), PARTS[r["part"]], r[side]) for r in ordered])
        for side in _SIDES
    ]
    said = f"Per step, mean over ranks; all parts together: {_signed(sum(r['change'] for r in rows))}."
    table = table_of(rows, ("part", "text", lambda r: PARTS[r["part"]]), *_CHANGE, ("verdict", "verdict", "what"))
    both = rows and bar_chart("Both steps by their parts", bars, "ms", width=WIDE, left=40)
    return (both and Section("budget", "Where the difference went", (said,), both, table, (_changes(rows),))) or None


def _changes(rows: Sequence[Document]) -> Drawing:
    """Return changes with their intervals around zero."""
    reach = max(abs(v) for r in rows for v in (r["change"], r["low"] or 0.0, r["high"] or 0.0)) or 1.0
    bars = []
    for r in rows:
        chance = r["low"] is None or r["low"] <= 0 <= r["high"]
        kind = ("unknown", "may be chance") if chance else ("high", "longer") if r["change"] > 0 else ("low", "shorter")
        low, high = (None if v is None else reach + v for v in (r["low"], r["high"]))
        bars.append(Bar(PARTS.get(r["part"]) or str(r["part"]), [(*kind, abs(r["change"]))], _signed(r["change"]),
                        start=reach + min(0.0, r["change"]), low=low, high=high))  # fmt: skip
    label = "Changes with their intervals; the table below holds the numbers"
    return bar_chart("Changes", bars, "ms", width=760, axis=False, limit=reach, label=label)


def _steps(document: Document) -> Section | None:
    lines = []
    for side, colour in (("a", "input"), ("b", "compute")):
        points = [(i, t) for run in document[side]["runs"] for i, t in enumerate(run["step_times_ms"])]
        level = document["step_ms"][side]
        name = f"{side.upper()}: {document[side]['name']}"
        lines += [Line(name, points, colour, "dots", radius=2)] if points else []
        lines += [Line("", [(0, level), (len(points) - 1, level)], colour, dashed=True)] if points and level else []
    x, y = Axis("step, warm-up left out", "count", zero=False), Axis("step time", "ms", zero=False)
    note = ["Dashed: the mean of the middle half."]
    return (
        Section("steps", "Step times", (), line_chart("Step times", lines, x, y, width=WIDE, notes=note))
        if lines
        else None
    )


def _metrics(document: Document) -> Section | None:
    rows = sorted(document["metrics"], key=lambda r: (not r.get("significant"), -abs(r["change_pct"] or 0)))
    said = "Those that differ by more than chance first. Several runs per side give every number an interval."
    return _section(
        "metrics", "Every number of the reports", said, rows, ("name", "text", "name"), ("A", "number", "a"),
        ("B", "number", "b"), ("change", "signed_pct", "change_pct"),
        ("from", "signed_pct", lambda r: r.get("low_pct")),
        ("to", "signed_pct", lambda r: r.get("high_pct")),
        ("verdict", "text", lambda r: "differs" if r.get("significant") else None),
    )  # fmt: skip


def _bench_sections(document: Document) -> list[Section]:
    rows = [{**s["step_ms"], **s, "part": s["name"], "what": s["verdict"]} for s in document["series"]]
    sides = (("A", document["only_a"]), ("B", document["only_b"]))
    only = tuple(f"Only in {side}: {', '.join(names)}" for side, names in sides if names)
    table = table_of(rows, ("series", "text", "part"), *_CHANGE, ("p", "number", "p_value"),
                     ("runs", "text", lambda r: ", ".join(map(str, r["num_runs"]))),
                     ("verdict", "verdict", "what"))  # fmt: skip
    return [Section("series", "Series of both sides", only, _changes(rows) if rows else None, table)]


def _timelines(lanes: Document | None) -> Section | None:
    if not lanes:
        return None
    drawn = []
    for rank in lanes["ranks"]:
        end = max(side["span_ms"] for side in rank["sides"])
        rows = []
        for name, side in zip("AB", rank["sides"], strict=True):
            step = "" if side["step"] is None else f", step {side['step']}"
            rows.append(Lane(f"{name}{step}: {unit_text(side['span_ms'], 'ms')}"))
            for lane, title in enumerate(LANES):
                spans = [_span(side, *slice_) for slice_ in side["slices"] if _LANE[slice_[0]] == lane]
                if spans:
                    rows.append(Lane(title, spans, height=15))
        kinds = sorted({slice_[0] for side in rank["sides"] for slice_ in side["slices"]})
        legend = [(_KIND[k], NAMES[_KIND[k]]) for k in kinds]
        drawn.append(lane_chart(f"Rank {rank['rank']}, {rank['why']}", rows, end, legend=legend, left=70))
    said = "The step nearest to the median of the first run of each side."
    return Section("timelines", "One step of each side, on one scale", (said,), None, None, tuple(drawn))


def _span(side: Document, kind: int, start_us: float, dur_us: float, name: int) -> Span:
    tip = (side["names"][name], NAMES[_KIND[kind]], unit_text(dur_us / 1000, "ms"))
    return Span(start_us / 1000, (start_us + dur_us) / 1000, _KIND[kind], tip, pale=_KIND[kind] in ("wait", "idle"))


def _signed(value: float | None) -> str:
    return f"{'+' if value and value > 0 else ''}{unit_text(value, 'ms')}"


# One step of two runs, to be drawn below each other: rank 0, and the rank that is worst.
#
#     {"ranks": [{"rank", "why", "sides": [{"step", "span_ms", "names", "slices": [[kind, start, dur, name]]}]}]}
#
# Starts and durations are in microseconds. A transfer's wait for the last rank is a separate slice.

# of one rank and side; the longest are shown
_MAX_SLICES = 2000
_KIND, _LANE = (*KINDS, "wait"), (*LANE_OF_KIND, LANE_OF_KIND[KINDS.index("transfer")])
_WAIT = len(KINDS)

Side = tuple[Account, Diagnosis]


def side_by_side(a: Side, b: Side) -> dict[str, Any] | None:
    """Return the lanes of both sides, None where a side shows nothing or they share no rank."""
    shared = sorted({r.rank for r in a[0].run.ranks} & {r.rank for r in b[0].run.ranks})
    if not shared:
        return None
    chosen = {shared[0]: "the first rank"} | _worst(a, b, shared)
    drawn = [slices_of(side[0], grid_of(side[0]), wanted=list(chosen)) for side in (a, b)]
    if any(slices is None for slices in drawn):
        return None
    ranks = [(rank, why) for rank, why in chosen.items() if all(rank in s.ranks for s in drawn if s)]
    if not ranks:
        return None
    return {
        "ranks": [{"rank": rank, "why": why, "sides": [_lanes(s, rank) for s in drawn if s]} for rank, why in ranks]
    }


def _worst(a: Side, b: Side, shared: Sequence[int]) -> dict[int, str]:
    named = [
        (f.alone_ns, rank, f"{f.id} in {name}")
        for name, (_, diagnosis) in (("A", a), ("B", b))
        for f in diagnosis.findings
        for rank in f.ranks[:1]
        if rank in shared and len(f.ranks) < len(shared)
    ]
    if not named:
        return {}
    _, rank, why = max(named)
    return {rank: why}


def _lanes(s: Slices, rank: int) -> dict[str, Any]:
    mine = np.flatnonzero(s.rank == s.ranks.index(rank))
    kept = np.sort(mine[np.argsort(-s.dur_ns[mine], kind="stable")[:_MAX_SLICES]])
    waits = kept[s.wait_ns[kept] > 0]
    start = np.concatenate((s.start_ns[kept] + s.wait_ns[kept], s.start_ns[waits]))
    dur = np.concatenate((s.dur_ns[kept] - s.wait_ns[kept], s.wait_ns[waits]))
    kind = np.concatenate((s.kind[kept].astype(np.int64), np.full(len(waits), _WAIT)))
    names, name = np.unique(np.concatenate((s.name[kept], s.name[waits])), return_inverse=True)
    order = np.argsort(start, kind="stable")
    columns = (kind[order], (start[order] / NS_PER_US).round(1), (dur[order] / NS_PER_US).round(1), name[order])
    return {
        "step": s.step,
        "span_ms": s.span_ns / NS_PER_MS,
        "names": [s.names[n] for n in names.tolist()],
        "slices": [list(row) for row in zip(*(c.tolist() for c in columns), strict=True)],
        "left_out": len(mine) - len(kept),
    }
