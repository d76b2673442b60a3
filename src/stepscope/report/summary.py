"""The report on one screen of a terminal: what to fix, where the step goes, how the ranks differ, what to run next.

A rendering of the report's JSON and nothing else, so the cached document is the only cache. Standard library only: a
cached report is printed without importing anything heavy.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from stepscope.contract.names import CAUSES, PARTS, shown_parts
from stepscope.document.sentence import (
    capital,
    caveats,
    fact_text,
    headline_sentence,
    is_bound,
    is_light,
    joules_text,
    leading_findings,
    likely_text,
    places_of,
    reasons,
    saving_text,
    serving_lines,
    three_digits,
    time_text,
    together_text,
    unread,
)
from stepscope.report.sheet_text import Row, broken, cut, painted, text_width, wrapped
from stepscope.units import printable, rank_ranges

Json = Mapping[str, Any]
MAX_ROWS = 25
_MAX_WIDTH = 100
_MIN_WIDTH = 36
#: share of the step below which a part, or a difference between ranks, is not worth a row
_WORTH_SHOWING = 0.03
#: a line that holds this share of a finding's cost is its place
_MIN_MOSTLY = 0.5
# three digits show a shorter step as 0.000
_LEAST_SHOWN_MS = 0.0005
#: share of a rank's lateness that others wait for
_MIN_AWAITED = 0.1

_TRACE_ENDING = re.compile(r"(\.pt\.trace)?\.json(\.gz|\.zst)?$")
_LAYER = re.compile(r"(^|\.)\d+(?=\.|$)")
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
#: the host's parts in which first calls load modules, create a context or compile
_FIRST_CALLS = ("launch_gap", "allocator", "host_stall")
_STYLES = {
    **dict.fromkeys((*_COMPUTE, "compute"), "green"),
    **dict.fromkeys(("exposed_transfer", "unmatched"), "red"),
    **dict.fromkeys(("wait", "pipeline_bubble"), "magenta"),
    **dict.fromkeys(("copy", "data_loading"), "yellow"),
    **dict.fromkeys(("launch_gap", "host_sync", "allocator", "host_stall"), "cyan"),
    **dict.fromkeys(("unknown", "profiler", "other"), "dim"),
}
#: causes of idle time in a part: one that makes up most of it names it
_CAUSES_IN = {
    "host_sync": ("host_sync", "blocking_copy", "after_sync"),
    "launch_gap": ("launch", "slow_call"),
}
#: columns of the table of ranks; they sum to the step
_COLUMNS = {
    "compute": _COMPUTE,
    "exposed comm": ("exposed_transfer",),
    "wait": ("wait", "pipeline_bubble"),
    "copies": ("copy",),
    "idle": ("data_loading", "launch_gap", "host_sync", "allocator", "host_stall", "unknown"),
}
#: cells of a fix's title below which its saving gets a row of its own
_MIN_TITLE = 30
#: times its own time: what a line saves that has to be explained
_MORE = 1.1
#: of the step: a costly line below it reads as 0 %
_LEAST_PCT = 0.5
#: fixes, rows per fix after the first, bars, rows of ranks, lines: the first layout that fits is taken
_LAYOUTS = (
    (3, 5, 6, 4, 3), (3, 4, 6, 4, 3), (3, 4, 5, 3, 3), (3, 3, 5, 3, 3), (3, 3, 4, 3, 3), (3, 3, 4, 2, 3),
    (2, 3, 5, 3, 3), (2, 3, 4, 2, 3), (2, 2, 4, 2, 3), (1, 2, 4, 2, 3), (1, 2, 3, 2, 3), (1, 2, 3, 1, 3),
    (1, 2, 3, 1, 1), (1, 2, 3, 0, 1), (1, 2, 2, 0, 0),
)  # fmt: skip


def summary_text(
    document: Json,
    *,
    command: Sequence[str] = (),
    verbose: bool = False,
    width: int = 80,
    unicode: bool = True,
    colour: bool = False,
) -> str:
    """Return the report for a terminal: one screen, with `verbose` everything else below it.

    `command` is how the run was named on the command line, for the commands to run next.
    """
    room = min(width, _MAX_WIDTH) - (0 if unicode else 4)  # "->" and "..." are wider
    view = _View(document, command, max(_MIN_WIDTH, room), verbose=verbose)
    screen = painted(_screen(view), unicode=unicode, colour=colour)
    if not verbose:
        return screen
    from stepscope.report.pages.report import details_sheet
    from stepscope.report.sheet_text import sheet_text

    details = details_sheet(document, command)
    return f"{screen}\n{sheet_text(details, verbose=True, width=width, unicode=unicode, colour=colour)}"


class _View:
    """A document with what several sections need of it."""

    def __init__(self, document: Json, command: Sequence[str], width: int, *, verbose: bool) -> None:
        self.document, self.width, self.verbose = document, width, verbose
        self.command = " ".join(shlex.quote(printable(word)) for word in command) or "RUN"
        run, step = document["run"], document["step"]
        self.is_light = is_light(document)
        self.whole = "step" if run["num_steps"] else "window"
        self.step_ms: float | None = step["unprofiled_ms"] or step["profiled_ms"]
        self.findings = [f for f in document["findings"] if f["saving_alone_ms"] > 0]
        self.late = {s["rank"]: s for s in document["stragglers"] if _is_awaited(document, s)}
        self.idle_ms: dict[str, float] = {row["cause"]: row["ms_per_step"] for row in document.get("idle") or ()}
        self._places = places_of(self.step_ms or 0.0)

    def ms(self, value: float) -> str:
        """Return a time of a table, with the same decimals in every row."""
        return f"{value:,.{self._places}f}"


def _screen(view: _View) -> list[Row]:
    top = [*_heading(view), *_nccl_line(view), (), *_opening(view)]
    bottom = [(), *_next(view)]
    for fixes, rows_per_fix, bars, rank_rows, lines in _LAYOUTS:
        sections = [
            _fixes(view, fixes, rows_per_fix),
            _costly_lines(view, lines),
            _where(view, bars),
            _ranks(view, rank_rows),
        ]
        rows = [*top, *(row for section in sections if section for row in ((), *section)), *bottom]
        if _height(rows, view.width) <= MAX_ROWS:
            break
    return rows


def _height(rows: Iterable[Row], width: int) -> int:
    return sum(max(1, -(-sum(text_width(text) for text, _ in row) // width)) for row in rows)


# The run and the sentence


def _heading(view: _View) -> list[Row]:
    run, used = view.document["run"], view.document["efficiency"]
    device = printable(run["device"] or "device unknown", width=30).removeprefix("NVIDIA ")
    read, world = run["num_ranks"], run["world_size"]
    ranks = f"{read} of {world} ranks" if world and world != read else f"{read} ranks"
    many = f"{read} × {device}" if ranks.startswith(f"{read} ranks") and device != "CPU" else f"{ranks} · {device}"
    if run.get("num_devices") and run["num_devices"] < read:
        many = f"{read} ranks on {run['num_devices']} × {device}"
    kind = (view.document.get("recording") or {}).get("kind")
    facts = [device if read == 1 and world in (1, None) else many, *([kind] if kind not in (None, "training") else [])]
    if "ranks_in_full" in run:
        facts.append(f"{len(run['ranks_in_full'])} in full")
    if run["strategy"] not in (None, "single", "unknown"):
        facts.append(_strategy(run["strategy"]))
    facts.append(_count(run["num_steps"], "step") if run["num_steps"] else "no steps")
    if view.is_light:
        facts += ["step logs only", *([f"{three_digits(view.step_ms)} ms per step"] if view.step_ms else [])]
    if used["mfu"] is not None:
        facts.append(f"MFU {_percent(used['mfu'])} %")
    if rate := view.document["step"].get("tokens_per_s"):
        facts.append(f"{rate:,.0f} tokens/s")
    if joules := (view.document.get("energy") or {}).get("j_per_step"):
        facts.append(f"{joules_text(joules)}/step")
    while len(facts) > 1 and text_width("".join(facts)) + 3 * len(facts) > view.width - 16:
        facts.pop()
    rest = "".join(f" · {fact}" for fact in facts)
    name = _TRACE_ENDING.sub("", printable(run["name"]))
    rows: list[Row] = [((cut(name, view.width - text_width(rest)), "bold"), (rest, ""))]
    if run.get("asked_by"):
        rows += wrapped(f"window {run['window']}, triggered by: {run['asked_by']}", view.width, indent="  ", most=2)
    return rows


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share >= 0.001 else f"{100 * share:.1g}"


def _strategy(name: str) -> str:
    words = (word.upper() if word[:2] in ("dd", "fs", "tp", "pp", "ep", "cp") else word for word in name.split(" x "))
    return printable(" × ".join(words), width=30).replace("-ZERO", " ZeRO-")


def _opening(view: _View) -> list[Row]:
    document, width = view.document, view.width
    sentence = capital(document["verdict_reason"]) if view.is_light else headline_sentence(document)
    whole = [sentence] if text_width(sentence) + 2 <= width else re.split(r"(?<=\.) (?=Fix)", sentence, maxsplit=1)
    rows = [row for part in whole for row in _whole_clauses(part, width, style="bold", most=3 if width >= 60 else 8)]
    for line in (*(one for one in reasons(document) if one != sentence), *(f"! {one}" for one in caveats(document))):
        rows += _whole_clauses(line, width, most=2 if width >= 60 else 6)
    lost = unread(document)
    for line in lost[:1]:
        rows += wrapped(f"! {line}{f' (and {len(lost) - 1} more: -v)' * (len(lost) > 1)}", width, indent="  ", most=2)
    return [*rows, *(row for line in serving_lines(document)[:2] for row in wrapped(line, width, indent="  ", most=1))]


def _is_awaited(document: Json, straggler: Json) -> bool:
    """Return whether other ranks wait for a late rank; its lateness can be hidden behind communication."""
    others = [r.get("budget_ms_per_step") for r in document["ranks"] if r["rank"] != straggler["rank"]]
    waits = [p.get("wait", 0.0) + p.get("pipeline_bubble", 0.0) for p in others if p]
    step_ms = document["step"]["unprofiled_ms"] or document["step"]["profiled_ms"] or 0.0
    return not waits or max(waits) >= max(_MIN_AWAITED * straggler["late_ms_per_step"], _WORTH_SHOWING * step_ms)


# Fixes


def _fixes(view: _View, most: int, rows_per_fix: int) -> list[Row]:
    shown = leading_findings(view.findings)[:most]
    if view.document["verdict"] == "unclear":  # the sentence is not about fixes
        shown = shown or view.findings[:1]
    numbers = _numbers(view, shown)
    rows = [  # numbered as in the details and on the page, where those that are left out here come between
        row
        for k, f in enumerate(shown)
        for row in _fix(view, view.findings.index(f) + 1, f, numbers[k], rows_per_fix if k else max(rows_per_fix, 3))
    ]
    if not shown and not view.is_light:
        rows += _examined(view)
    rest = len(view.findings) - len(shown)
    more = f"{rest}{' more' if shown else ''} fix{'es' * (rest > 1)}" if rest else ""
    in_order = len(shown) > 1 and shown == view.findings[: len(shown)]
    if in_order and (together := together_text(view.document, len(shown), view.step_ms)):
        return [*rows, _together_row(view, len(shown), together, more, numbers[0])]
    how = "smaller or less certain" if shown else "small or uncertain"
    hidden = [
        *([f"{more}, {how}"] if rest else []),
        *([_count(len(view.document["warnings"]), "note")] if view.document["warnings"] and not view.is_light else []),
    ]
    if hidden and not view.verbose:
        rows += wrapped(f"·  {'; '.join(hidden)} (-v)", view.width, indent=" ", style="dim")
    return rows


def _numbers(view: _View, findings: Sequence[Json]) -> list[tuple[str, str]]:
    """Return the saving and the range of fixes as two columns."""
    savings = [_saving(view, finding) for finding in findings]
    ranges = [likely_text(finding, view.step_ms, " ms") for finding in findings]
    widths = [max(map(len, column), default=0) for column in (savings, ranges)]
    return [(f"{a:>{widths[0]}}", f"{b:<{widths[1]}}") for a, b in zip(savings, ranges, strict=True)]


def _saving(view: _View, finding: Json) -> str:
    text = saving_text(finding, view.step_ms)
    return f"{'' if is_bound(finding) else '−'}{text} ms"


def _title_room(view: _View, numbers: tuple[str, str]) -> int:
    return view.width - sum(map(len, numbers)) - 8


def _together_row(view: _View, count: int, together: tuple[str, float], more: str, numbers: tuple[str, str]) -> Row:
    text, saved = together
    room, total = (
        _title_room(view, numbers),
        f"{'at most ' if any(map(is_bound, view.findings[:count])) else '−'}{time_text(saved, view.step_ms)} ms",
    )
    if room < _MIN_TITLE:
        return ((f"    Together {total}", "green"),)
    more = f"  -v: {more}" if more and not view.verbose else ""
    return ((f"    {text:<{room}}", ""), (f"  {total:>{len(numbers[0])}}", "green"), (more, "dim"))


def _fix(view: _View, number: int, finding: Json, numbers: tuple[str, str], most: int) -> list[Row]:
    indent, room = " " * 4, _title_room(view, numbers)
    is_narrow = room < _MIN_TITLE
    title = broken(printable(finding["title"]), view.width - 4 if is_narrow else room, most=2)
    shown = "" if is_narrow else "".join(f"  {number}" for number in numbers)
    rows: list[Row] = [((f" {number}  ", "bold"), (f"{title[0]:<{room}}", "bold"), (shown, "green"))]
    rows += [((f"{indent}{line}", "bold"),) for line in title[1:]]
    if is_narrow:
        rows.append(((f"{indent}{', '.join(text.strip() for text in numbers)}", "green"),))
    evidence = _evidence(view, finding, view.width - 4)
    if evidence and len(rows) + 2 <= most:
        rows.append(((f"{indent}{evidence}", ""),))
    action = printable(finding["remedy"].split(". ")[0].rstrip("."), width=400)
    lines = broken(action, view.width - 6, most=9)
    if len(rows) + len(lines) > max(most, len(rows) + 1):
        lines = [_clauses(action, view.width - 6)]
    return [*rows, *(((f"{indent}{'  ' if n else '→ '}{line}", ""),) for n, line in enumerate(lines))]


def _place(finding: Json) -> str | None:
    where = next(iter(finding.get("where") or ()), None)
    if where is None or where["share"] < _MIN_MOSTLY:
        return None
    place = f"{where['file']}:{where['line']}" if where["file"] else where["module"]
    return None if not place or place in finding["title"] else _cut_path(printable(place, width=400), 50)


def _cut_path(place: str, room: int) -> str:
    """Return a path without its first folders where it is too long: the file and its line matter most."""
    while text_width(place) > room and "/" in place.removeprefix("…/"):
        place = f"…/{place.removeprefix('…/').partition('/')[2]}"
    return place if text_width(place) <= room else f"…{place[1 - room :]}"


def _source(view: _View, finding: Json) -> str:
    """Return the source text of the line that a finding's title names."""
    where = next(iter(finding.get("where") or ()), None)
    return "" if where is None or not where["file"] or where["share"] < _MIN_MOSTLY else _source_of(view, where)


def _source_of(view: _View, line: Json) -> str:
    """Return the source text of a line; its module where the text was not recorded."""
    rows = (row for row in view.document["code"] if (row["file"], row["line"]) == (line["file"], line["line"]))
    source = next((row["source"] for row in rows), None) or _LAYER.sub(r"\1*", line["module"] or "")  # of all layers
    return printable("" if source == "*" else source.strip(), width=400)


def _evidence(view: _View, finding: Json, room: int) -> str:
    place, source = _place(finding), _source(view, finding)
    if source and not place:
        return cut(source, room)
    facts = [f"mostly at {place}"] if place else []
    several = {fact["what"] for fact in finding["evidence"] if fact["what"] != "late in"}
    same = [what for what in several if sum(fact["what"] == what for fact in finding["evidence"]) > 1]
    facts += [
        fact_text(fact, view.step_ms) + (f" ({fact['where']})" if fact["what"] in same and fact["where"] else "")
        for fact in finding["evidence"]
    ]
    line = facts[0] if facts else ""
    for fact in facts[1:]:
        if fact not in line and text_width(f"{line}; {fact}") <= room:
            line = f"{line}; {fact}"
    return cut(line, room)


def _examined(view: _View) -> list[Row]:
    document, found = view.document, {f["id"] for f in view.document["findings"]}
    lists = {
        "Examined, nothing to fix": [rule for rule in document.get("examined") or () if rule not in found],
        "Not examined (-v: why)": [one["rule"] for one in document["not_examined"]],
    }
    rows: list[Row] = []
    for title, names in lists.items():
        for shown in range(len(names), 0, -1):
            more = f" and {len(names) - shown} more" if shown < len(names) else ""
            lines = wrapped(f"{title}: {', '.join(names[:shown])}{more}", view.width, indent=" ")
            if len(lines) <= 3:
                rows += lines
                break
    return rows


# Where the step goes


def _where(view: _View, most: int) -> list[Row]:
    times, step_ms = _times(view), view.step_ms
    label: Callable[[_View, str], tuple[str, str]] = _part_label
    if view.is_light and step_ms:
        times, label = _regions(view, step_ms), lambda _, part: (printable(part, width=24), "green")
    if not step_ms or step_ms < _LEAST_SHOWN_MS or not times:
        return []
    core_ms = view.document["step"].get("core_wait_ms") or 0.0
    no_core = core_ms >= _WORTH_SHOWING * step_ms and not view.document["step"].get("starved")
    waste = _waste(view)
    most -= no_core + bool(waste)
    compute_ms = sum(times.get(part, 0.0) for part in _COMPUTE)
    if compute_ms < 0.5 * step_ms and any(times.get(part) for part in _COMPUTE):
        times = {"compute": compute_ms} | {part: ms for part, ms in times.items() if part not in _COMPUTE}
    if (view.document.get("recording") or {}).get("kind") == "cold-start":  # which of these a warm step has is unknown
        first_ms = sum(times.get(part, 0.0) for part in _FIRST_CALLS)
        times = {"first calls and launches": first_ms} | {p: ms for p, ms in times.items() if p not in _FIRST_CALLS}
    ordered = sorted((part for part in times if times[part] > 0), key=lambda part: -times[part])
    large = [part for part in ordered if times[part] >= _WORTH_SHOWING * step_ms]
    shown = large if len(large) <= most and len(large) == len(ordered) else large[: most - 1]
    if len(shown) > 2 and "compute" in large and "compute" not in shown:
        shown = [*shown[:-1], "compute"]
    rest_ms = sum(times[part] for part in ordered if part not in shown)
    bars = [(*label(view, part), times[part]) for part in shown]
    if rest_ms >= 0.005 * step_ms:
        bars.append((PARTS["other"], _STYLES["other"], rest_ms))
    title = f" Where the {three_digits(step_ms)} ms{' of the window' * (view.whole == 'window')} go"
    title += " (average rank)" if len(view.document["ranks"]) > 1 else ""
    waits = f"   for {view.ms(core_ms)} ms of these the training thread is ready but has no CPU core"
    more = [*([waits] if no_core else []), *([waste] if waste else [])]
    return [
        ((cut(title, view.width), "bold"),),
        *_bars(view, bars),
        *(((cut(line, view.width), "dim"),) for line in more),
    ]


def _times(view: _View) -> dict[str, float]:
    """Return the parts of the step, the profiler's own time apart: of `unknown`, it is known."""
    times = shown_parts(view.document["step"])
    own_ms = min(view.idle_ms.get("profiler", 0.0), times.get("unknown", 0.0))
    return {**times, "unknown": times["unknown"] - own_ms, "profiler": own_ms} if own_ms else times


def _waste(view: _View) -> str | None:
    """Return what late ranks cost in joules, None where that is little or unknown."""
    energy = view.document.get("energy") or {}
    late = max(energy.get("late_ranks") or (), key=lambda one: one["waste_j_per_step"], default=None)
    if late is None or late["waste_j_per_step"] < _WORTH_SHOWING * energy["j_per_step"]:
        return None
    share = 100 * late["waste_j_per_step"] / energy["j_per_step"]
    return f"   lateness of rank {late['rank']} costs {joules_text(late['waste_j_per_step'])} per step ({share:.0f} %)"


def _part_label(view: _View, part: str) -> tuple[str, str]:
    text, style = PARTS.get(part) or printable(part, width=24), _STYLES.get(part, "")
    within = {cause: view.idle_ms.get(cause, 0.0) for cause in _CAUSES_IN.get(part, ())}
    text = next((CAUSES[cause] for cause, ms in within.items() if 2 * ms > sum(within.values())), text)
    ranks = view.document["ranks"]
    if part == "wait" and len(view.late) == 1:
        return f"waiting for rank {next(iter(view.late))}", style
    if len(ranks) > 1 and part not in ("compute", "wait", "pipeline_bubble", *_COMPUTE):
        spent = {r["rank"]: (r.get("budget_ms_per_step") or {}).get(part, 0.0) for r in ranks}
        worst = max(spent, key=lambda rank: spent[rank])
        if spent[worst] > 0.8 * sum(spent.values()) > 0:
            return f"{text} (mostly rank {worst})", style
    return text, style


def _regions(view: _View, step_ms: float) -> dict[str, float]:
    """Return the mean of each region over ranks; none where they overlap, because shares would exceed the step."""
    ranks = [r["regions_ms"] for r in view.document["ranks"]]
    names = dict.fromkeys(name for regions in ranks for name in regions)
    means = {name: _mean([r[name] for r in ranks if r.get(name) is not None]) for name in names}
    rest_ms = step_ms - sum(means.values())
    return {**means, "outside regions": rest_ms} if means and rest_ms >= 0 else {}


def _bars(view: _View, bars: Sequence[tuple[str, str, float]]) -> list[Row]:
    total = max(view.step_ms or 0.0, sum(ms for _, _, ms in bars))
    names = min(max(len(name) for name, _, _ in bars), view.width - 22)
    numbers = [view.ms(ms) for _, _, ms in bars]
    digits = max(map(len, numbers))
    room = max(4, min(30, view.width - names - digits - 15))
    rows: list[Row] = []
    shares = [ms / total for _, _, ms in bars]
    percentages = _percentages(shares)
    widest = max(3, *map(len, percentages))
    for (name, style, _), number, share, pct in zip(bars, numbers, shares, percentages, strict=True):
        cells = f"   {cut(name, names):<{names}}  {number:>{digits}}  {pct:>{widest}} %  "
        rows.append(((cells, ""), (_bar(share, room), style)))
    return rows


def _percentages(shares: Sequence[float]) -> list[str]:
    """Return percentages that do not sum above 100: whole ones, else with a decimal, cut off where that is needed."""
    for texts in ([f"{100 * share:.{places}f}" for share in shares] for places in (0, 1)):
        if sum(map(float, texts)) < 100.01:
            return texts
    return [f"{int(1000 * share) / 10:.1f}" for share in shares]


def _bar(share: float, room: int) -> str:
    whole, eighths = divmod(max(1, round(8 * share * room)), 8)
    return "█" * whole + ("" if eighths == 0 else "▏▎▍▌▋▊▉"[eighths - 1])


# Ranks


def _ranks(view: _View, most: int) -> list[Row]:
    times = _rank_times(view)
    if len(times) < 2 or not most:
        return []
    for tolerance in (0.05, 0.1, 0.2):
        groups = _grouped(view, times, tolerance * (view.step_ms or 0.0))
        if len(groups) <= most:
            break
    if len(groups) == 1 and not view.late:
        within = f"within {100 * tolerance:.0f} % of the {view.whole}"
        return wrapped(f"Ranks {rank_ranges(groups[0][0])} take the same time, {within}", view.width, indent=" ")
    if most == 1:
        return [((f" Ranks differ, {len(groups)} groups: -v", "dim"),)]
    shown = groups if len(groups) <= most else groups[: most - 1]
    rows = _rank_table(view, shown)
    if len(groups) > len(shown):
        others = [rank for ranks, _ in groups[len(shown) :] for rank in ranks]
        late = rank_ranges([rank for rank in others if rank in view.late])
        also = f", rank {late} late as well" if late else ""
        rows.append(((f"   {_count(len(others), 'more rank')}{also}: -v", "dim"),))
    return rows


def _rank_times(view: _View) -> dict[int, dict[str, float]]:
    """Return the columns of each rank in ms per step."""
    times = {}
    for rank in view.document["ranks"]:
        parts = rank.get("budget_ms_per_step")
        if parts:
            times[rank["rank"]] = {name: sum(parts.get(p, 0.0) for p in of) for name, of in _COLUMNS.items()}
        elif rank.get("median_step_ms") is not None:
            times[rank["rank"]] = {
                "step": rank["median_step_ms"],
                **{n: ms for n, ms in rank["regions_ms"].items() if ms is not None},
            }
    return times


def _grouped(
    view: _View, times: Mapping[int, Mapping[str, float]], slack_ms: float
) -> list[tuple[list[int], dict[str, float]]]:
    """Return ranks that differ by at most `slack_ms`, late ones first, with their mean times."""
    groups: list[list[int]] = []
    for rank, mine in times.items():
        for group in groups:
            first = times[group[0]]
            same = all(abs(first.get(name, 0.0) - mine.get(name, 0.0)) <= slack_ms for name in {*first, *mine})
            if same and rank not in view.late and group[0] not in view.late:
                group.append(rank)
                break
        else:
            groups.append([rank])
    names = dict.fromkeys(name for one in times.values() for name in one)
    means = [(group, {n: _mean([times[rank].get(n, 0.0) for rank in group]) for n in names}) for group in groups]
    late_ms = {rank: one["late_ms_per_step"] for rank, one in view.late.items()}
    return sorted(means, key=lambda one: (-late_ms.get(one[0][0], 0.0), one[0][0]))


def _rank_table(view: _View, groups: Sequence[tuple[list[int], Mapping[str, float]]]) -> list[Row]:
    """Return the columns that fit."""
    most: dict[str, float] = {}
    for _, times in groups:
        most |= {name: max(ms, most.get(name, 0.0)) for name, ms in times.items()}
    columns = [name for name in most if name != "copies" or most[name] >= _WORTH_SHOWING * (view.step_ms or 0.0)]
    if view.is_light:  # the smallest regions are left out first
        columns.sort(key=lambda name: -most[name])
    late = [_late(view, view.late[ranks[0]]) if ranks[0] in view.late else "" for ranks, _ in groups]
    first = f" Ranks, ms per {view.whole}" if view.width >= 60 else " Ranks, ms"
    labels = [
        f"   {cut(rank_ranges(ranks), 24)}{' ◀' * bool(text)}" for (ranks, _), text in zip(groups, late, strict=True)
    ]
    names = max(map(len, (first, *labels)))
    late_width = max(map(len, late)) + 2 if any(late) else 0
    titles = {name: printable(name, width=20) for name in columns}
    while len(columns) > 1 and names + sum(max(len(titles[c]), 7) + 2 for c in columns) + late_width > view.width:
        columns.pop()
    header = f"{first:<{names}}" + "".join(f"  {titles[c]:>7}" for c in columns)
    rows: list[Row] = [((header, "bold"),)]
    for label, (_, times), text in zip(labels, groups, late, strict=True):
        values = (view.ms(times[c]) if c in times else "?" for c in columns)
        cells = "".join(f"  {value:>{max(len(titles[c]), 7)}}" for c, value in zip(columns, values, strict=True))
        rows.append(((f"{label:<{names}}{cells}", ""), (f"  {text}" if text else "", "red")))
    return rows


def _late(view: _View, straggler: Json) -> str:
    """Return a late rank's cause, and its lateness where no finding gives the size of the delay."""
    cause = f" ({straggler['cause']})" if straggler["cause"] else ""
    is_found = any(straggler["rank"] in f["ranks"] for f in view.findings)
    by = f" by {time_text(straggler['late_ms_per_step'], view.step_ms)} ms"
    return f"late{cause}" if is_found else f"late{by}{cause}"


# Lines of code, and what to run next


def _costly_lines(view: _View, most: int) -> list[Row]:
    lines = [x for x in view.document.get("costly_lines") or () if x["pct"] >= _LEAST_PCT][: max(0, most)]
    if not lines:
        return []
    places = [
        _cut_path(printable(f"{x['file']}:{x['line']}" if x["file"] else x["module"], width=400), 40) for x in lines
    ]
    columns = [
        [f"{view.ms(line['critical_ms'])} ms" for line in lines],
        [f"{line['pct']:.0f} %" for line in lines],
        ["" if line["saving_ms"] is None else f"saves {view.ms(line['saving_ms'])}" for line in lines],
    ]
    names, widths = max(map(text_width, places)), [max(map(len, column)) for column in columns]
    more = any((line["saving_ms"] or 0) > _MORE * line["critical_ms"] for line in lines)
    what = "critical path, saving if removed" + " with all it causes" * more
    of = "training thread, sampled" if lines[0].get("sampled") else what
    rows: list[Row] = [((cut(f" Most expensive lines ({of})", view.width), "bold"),)]
    for place, line, *cells in zip(places, lines, *columns, strict=True):
        numbers = "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        text = cut(f"   {place:<{names}}{numbers}  ", view.width)
        rows.append(((text, ""), (cut(_source_of(view, line), view.width - text_width(text)), "dim")))
    return rows


def _next(view: _View) -> list[Row]:
    command, what = f"stepscope view {view.command}", "   timeline and tables in the browser"
    if view.is_light:
        command, what = "stepscope record -- COMMAND", "   a trace shows the cause"
    fits = text_width(f" Next  {command}{what}") <= view.width
    return [((" Next  ", "bold"), (command, "cyan"), (what if fits else "", "dim"))]


def _nccl_line(view: _View) -> list[Row]:
    """Return NCCL's version, algorithms and warnings as one row; -v shows the rest."""
    if not (logs := view.document.get("nccl")):
        return []
    from stepscope.document.other_tools import nccl_facts

    facts = nccl_facts(logs)
    told = [fact for fact in facts if fact.startswith(("NCCL ", "algorithms", "warning"))]
    return [((cut(f" {printable('; '.join(told), width=400)}", view.width), "dim"),)] if told else []


# Text


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _clauses(text: str, room: int) -> str:
    """Return as many clauses of a sentence as fit."""
    if text_width(text) <= room:
        return text
    depth, end = 0, 0
    for i, (letter, after) in enumerate(pairwise(text[: room + 1])):
        depth += (letter in "([") - (letter in ")]")
        if depth == 0 and f"{letter}{after}" in (", ", "; ", ": ", " ("):
            end = i
    return text[:end] if end > 12 else cut(text, room)


def _whole_clauses(text: str, width: int, *, most: int, style: str = "") -> list[Row]:
    """Return as many clauses of a sentence as fit into some rows: it does not end in the middle of one."""
    text, room = printable(text, width=2000), most * (width - 2)
    while len(broken(text, width - 2, 100)) > most and room > width:
        text, room = _clauses(text, room), room - 8
    return wrapped(text, width, indent="  ", style=style, most=most)
