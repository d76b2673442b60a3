"""What differs between two sides of runs or benchmarks, from the JSON of `stepscope compare`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.contract.names import LOSSES, PARTS
from stepscope.report.sheet import (
    Column,
    Document,
    Section,
    Sheet,
    Values,
    card,
    picture,
    section_of,
    table_of,
    unit_text,
)

if TYPE_CHECKING:
    from stepscope.report.drawing import Drawing

_SIDES = ("a", "b")
_TONES = {"slower": "high", "faster": "low"}
_NO_DIFFERENCE = "no difference found"
#: metrics that a terminal shows without --verbose
_RATES = {
    "step.tokens_per_s": "tokens/s",
    "step.samples_per_s": "samples/s",
    "efficiency.mfu": "MFU (share of the peak)",
    "step.overlap_efficiency": "overlap efficiency",
}


def comparison_sheet(document: Document, *, lanes: "Sequence[Drawing]" = ()) -> Sheet:
    """Return the page; `lanes` are pictures of a step of each side (`side_by_side`)."""
    is_bench = document["basis"] == "bench"
    runs = [] if is_bench else [len(document[side]["runs"]) for side in _SIDES]
    facts = [
        *([] if is_bench else [document["headline"].removesuffix(".")]),
        "benchmarks" if is_bench else f"{document['basis']} steps",
        *(["one run each" if runs == [1, 1] else f"{runs[0]} and {runs[1]} runs"] if runs else []),
        "changes are B minus A, intervals 95 %",
    ]
    gates = section_of(
        "gates",
        "Gates",
        "",
        document["gates"],
        ("condition", "text", "fail_on"),
        ("", "verdict", lambda gate: "passed" if gate["holds"] else "failed"),
        ("found", "text", "said"),
    )
    found = _bench_sections(document) if is_bench else _run_sections(document, lanes)
    return Sheet(
        title=f"{document['a']['name']} (A) against {document['b']['name']} (B)",
        facts=tuple(facts),
        cards=() if is_bench else _cards(document),
        sections=(*gates, *found, *_metrics(document)),
        notes=tuple(document["notes"]),
    )


#: by the step that stands for the runs
STEP = {"typical": "mean of the middle half", "mean": "mean of all, since long ones recur"}


def _cards(document: Document) -> tuple[Values, ...]:
    step, verdict = document["code_ms"] or document["step_ms"], document["verdict"]
    counts = [sum(run["num_steps"] for run in document[side]["runs"]) for side in _SIDES]
    p = step["p_value"]
    known = "" if p is None else f"p {'< 0.001' if p < 0.001 else f'= {p:.3f}'}"
    interval = [f"{unit_text(step[f'{end}_pct'], 'signed_pct')}" for end in ("low", "high")]
    in_ms = [unit_text(step[end], "signed_ms") for end in ("low", "high")]
    tone, least = _TONES.get(verdict, ""), step["smallest_detectable"]
    without = ", without waits for a CPU core" if document["code_ms"] else ""
    said = f"{document['basis']} steps, {STEP[document['step']]}{without}"
    cards = [
        card("Verdict", f"B is {verdict}" if verdict in _TONES else verdict, why=known, tone=tone),
        card("Step", f"{unit_text(step['a'], 'ms')} → {unit_text(step['b'], 'ms')}", why=said),
        card("Change", step["change_pct"], "signed_pct", f"{unit_text(step['change'], 'signed_ms')} per step", tone),
    ]
    if step["low_pct"] is not None:
        cards.append(card("95 % interval", " to ".join(interval), why=" to ".join(in_ms)))
    if least is not None:
        many = f"{unit_text(least, 'ms')} with {counts[0]} and {counts[1]} steps, at 80 % power"
        cards.append(card("Smallest detectable", step["smallest_detectable_pct"], "pct", many))
    return tuple(cards)


_CHANGE: tuple[Column, ...] = (
    ("A", "ms", "a"), ("B", "ms", "b"), ("change", "signed_ms", "change"), ("from", "signed_ms", "low"),
    ("to", "signed_ms", "high"),
)  # fmt: skip


def _differs(row: Document) -> str:
    return "" if row["what"] == _NO_DIFFERENCE else str(row["what"])


def _run_sections(document: Document, lanes: "Sequence[Drawing]") -> list[Section]:
    code, losses = document["code"], [r for r in document["waterfall"] if r["a_pct_of_peak"] or r["b_pct_of_peak"]]
    counts = [sum(sign * r["change"] > 0 for r in code) for sign in (1, -1)]
    several = max(len(document[side]["runs"]) for side in _SIDES) > 1
    steps = Section("steps", "Step times", (), picture("html.compare", "step_times", document))
    timelines = Section(
        "timelines",
        "One step of each side, on one scale",
        more=tuple(lanes),
    )
    return [
        *section_of(
            "thread", "The step and the machine", "", _thread_times(document), ("per step", "text", "name"), *_CHANGE
        ),
        *_budget(document),
        *section_of("rates", "Rates", "", _rates(document), *_METRIC),
        *section_of(
            "findings",
            "New and resolved findings",
            (document["prediction"] or {}).get("sentence", ""),
            document["findings"],
            ("finding", "text", lambda f: f"{f['title']} [{f['id']}]"),
            ("status", "verdict", "what"),
            ("A saves", "ms", lambda f: f["a_saving_ms"] if f["a_runs"] else ""),
            ("B saves", "ms", lambda f: f["b_saving_ms"] if f["b_runs"] else ""),
            ("ranks", "text", lambda f: ", ".join(map(str, f["ranks"]))),
            ("runs of A, B", "text", lambda f: f"{f['a_runs']}, {f['b_runs']}" if several else ""),
        ),
        *([timelines] if lanes else []),
        *section_of(
            "code",
            "Lines of code that changed",
            f"Time on the critical path, {counts[0]} slower and {counts[1]} faster; the largest change first.",
            code,
            ("line", "text", lambda r: f"{r['file']}:{r['line']}"),
            *_CHANGE,
            ("verdict", "verdict", _differs),
            ("source", "name", lambda r: (r["source"] or r["function"] or "").strip()),
        ),
        steps,
        *section_of(
            "waterfall",
            "Where the FLOPs go, in % of peak",
            "",
            losses,
            ("loss", "text", lambda r: LOSSES[r["loss"]]),
            ("A", "pct", "a_pct_of_peak"),
            ("B", "pct", "b_pct_of_peak"),
            ("change", "signed_pct", "change_pct_of_peak"),
            ("A per step", "ms", "a_ms"),
            ("B per step", "ms", "b_ms"),
            most=0,
        ),
        *_calls(document, "kernels"),
        *_calls(document, "operators"),
    ]


def _thread_times(document: Document) -> list[Document]:
    names = {
        "step_ms": "wall time",
        "code_ms": "wall time without waits for a CPU core",
        "core_wait_ms": "waits of the training thread for a CPU core",
        "cpu_ms": "CPU time of the training thread",
    }
    known: list[Document] = [
        {"low": None, "high": None, **document[key], "name": name} for key, name in names.items() if document[key]
    ]
    return known if len(known) > 1 else []


def _rates(document: Document) -> list[Document]:
    known = [row for row in document["metrics"] if row["name"] in _RATES and row["change"] is not None]
    return [{**row, "name": _RATES[row["name"]]} for row in known]


def _calls(document: Document, what: str) -> list[Section]:
    count = document[f"{what}_changed"]
    return section_of(
        what,
        what.capitalize(),
        f"Per step, mean over ranks; {count} differ.",
        sorted(document[what], key=lambda row: (not _differs(row), -abs(row["change"]))),
        ("name", "kernel", "name"),
        *_CHANGE[:3],
        ("verdict", "verdict", _differs),
        *_CHANGE[3:],
        ("A calls", "count", "a_count"),
        ("B calls", "count", "b_count"),
        ("A each", "ms", "a_each_ms"),
        ("B each", "ms", "b_each_ms"),
        most=0,
    )


def _budget(document: Document) -> list[Section]:
    ordered = [r for r in document["budget"] if r["a"] or r["b"]]
    rows = sorted(ordered, key=lambda r: -abs(r["change"]))
    a, b, change = (sum(r[name] for r in rows) for name in ("a", "b", "change"))
    total = f"{unit_text(a, 'ms')} → {unit_text(b, 'ms')}, {unit_text(change, 'signed_ms')}"
    table = table_of(
        rows, ("part", "text", lambda r: PARTS[r["part"]]), *_CHANGE[:3], ("verdict", "verdict", _differs), *_CHANGE[3:]
    )
    said = f"Per step, mean over ranks; all parts together: {total}."
    both, changes = picture("html.compare", "both_budgets", ordered), picture("html.compare", "changes", rows)
    title = "Where the difference went"
    return [Section("budget", title, (said,), both, table, (changes,))] if rows else []


_METRIC: tuple[Column, ...] = (
    ("name", "text", "name"),
    ("A", "number", "a"),
    ("B", "number", "b"),
    ("change", "signed_pct", "change_pct"),
    ("from", "signed_pct", lambda row: row.get("low_pct")),
    ("to", "signed_pct", lambda row: row.get("high_pct")),
    ("verdict", "text", lambda row: "differs" if row.get("significant") else ""),
)


def _metrics(document: Document) -> list[Section]:
    rows = sorted(document["metrics"], key=lambda r: (not r.get("significant"), -abs(r["change_pct"] or 0)))
    said = "Those that differ by more than chance first. Several runs per side give every number an interval."
    return section_of("metrics", "Every number of the reports", said, rows, *_METRIC, most=0)


def _bench_sections(document: Document) -> list[Section]:
    rows = [{**s["step_ms"], **s, "part": s["name"], "what": s["verdict"]} for s in document["series"]]
    sides = (("A", document["only_a"]), ("B", document["only_b"]))
    lines = [f"Only in {side}: {', '.join(names)}" for side, names in sides if names]
    lines += [f"{s['name']}: {', '.join(s['config_changes'])}" for s in document["series"] if s["config_changes"]]
    table = table_of(
        rows,
        ("series", "text", "part"),
        *_CHANGE[:2],
        ("change", "signed_pct", "change_pct"),
        ("from", "signed_pct", "low_pct"),
        ("to", "signed_pct", "high_pct"),
        ("verdict", "verdict", "what"),
        *_CHANGE[2:],
        ("p", "number", "p_value"),
        ("runs", "text", lambda r: ", ".join(map(str, r["num_runs"]))),
    )
    return [Section("series", "Series of both sides", tuple(lines), picture("html.compare", "changes", rows), table)]
