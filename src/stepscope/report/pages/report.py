"""What `stepscope report -v` shows below the first screen, from the report's JSON."""

import shlex
from collections.abc import Sequence
from itertools import pairwise

from stepscope.contract.names import ENERGY, PARTS, shown_parts
from stepscope.document.other_tools import nccl_facts
from stepscope.document.sentence import (
    capital,
    fact_text,
    joules_text,
    likely_text,
    saving_text,
    serving_lines,
    three_digits,
    time_text,
    together_text,
)
from stepscope.report.pages.code import MOST, operators_section
from stepscope.report.pages.health import ranks_section
from stepscope.report.pages.light import measured_kernels, nccl_calls_section, regions_section
from stepscope.report.sheet import Document, Section, Sheet, section_of
from stepscope.units import printable, rank_ranges, readable_bytes

_ALL = 100_000
#: share of the step below which a part, or a line, is left out
_LEAST_PART, _LEAST_LINE = 0.005, 0.01
#: a line with a smaller share of self time only calls others
_MIN_SELF = 0.25
_JOULES = {"j_per_step": "per step", "j_per_token": "per token", "j_per_sample": "per sample", "total_j": "in all"}


def details_sheet(document: Document, command: Sequence[str]) -> Sheet:
    """Return the page; `command` is how the run was named on the command line."""
    step = document["step"]
    step_ms = step["unprofiled_ms"] or step["profiled_ms"]
    is_light = not document["run"]["sources"] and step["profiled_ms"] is None
    whole = "step" if document["run"]["num_steps"] else "window"
    several = len(document["ranks"]) > 1
    ranks = regions_section(document) if is_light else ranks_section(document) if several else []
    lines = {
        "Not examined": _unexamined(document),
        "NCCL log": nccl_facts(document.get("nccl") or ()),
        "Memory": _memory(document),
        "Notes": _notes(document),
        "Commands": _commands(document, command, is_light=is_light),
    }
    of = {title: _lines(title, found) for title, found in lines.items()}
    sections = (
        *_lines("Verdict", [f"{document['verdict']}: {document['verdict_reason']}"]),
        *_lines("Step", _step_lines(document)),
        *_findings(document, step_ms, whole),
        *of["Not examined"],
        *_parts(document, step_ms, whole),
        *_code(document, step_ms or 0.0),
        *operators_section(document["operators"], document["run"]["num_steps"], most=MOST),
        *ranks,
        *_lines("Ranks, more", _of_ranks(document)),
        *_links(document),
        *(measured_kernels(document) if is_light else ()),
        *of["NCCL log"],
        *nccl_calls_section(document.get("nccl") or ()),
        *of["Memory"],
        *_energy(document.get("energy")),
        *of["Notes"],
        *of["Commands"],
    )
    return Sheet("Details", (), (), sections)


def _lines(title: str, lines: Sequence[str]) -> list[Section]:
    return [Section(title.lower().replace(" ", "-"), title, tuple(lines))] if lines else []


def _step_lines(document: Document) -> list[str]:
    step, lines = document["step"], []
    over, whole_ms, profiled_ms = step["profiler_overhead_pct"], step["unprofiled_ms"], step["profiled_ms"]
    if whole_ms is not None:
        ordinary_ms = profiled_ms / (1 + over / 100) if over else whole_ms
        mean = f"; {three_digits(ordinary_ms)} in an ordinary step" if ordinary_ms < 0.99 * whole_ms else ""
        lines.append(f"{three_digits(whole_ms)} ms without the profiler{mean}")
    if profiled_ms is not None:
        more = f" (+{over:.0f} %)" if over is not None and over >= 0.5 else " (no overhead detected)"
        more = "; unprofiled time unknown" if whole_ms is None else "" if over is None else more
        lines.append(f"{three_digits(profiled_ms)} ms while profiled{more}")
    for key, unit in (("tokens_per_s", "tokens/s"), ("samples_per_s", "samples/s")):
        if step.get(key):
            lines.append(f"{step[key]:,.0f} {unit}")
    lines += serving_lines(document)
    for one in document.get("rare_regions", ()):
        often = f"in {one['steps']} of {one['num_steps']} steps"
        lines.append(f"{one['name']}: {three_digits(one['ms_per_step'])} ms per step on average, {often}")
    return lines


def _findings(document: Document, step_ms: float | None, whole: str) -> list[Section]:
    findings = document["findings"]
    worth = sum(f["saving_alone_ms"] > 0 for f in findings)
    together = together_text(document, worth, step_ms) if worth > 1 else None
    found = []
    for number, finding in enumerate(findings, start=1):
        lines = _finding_lines(finding, step_ms)
        if together and number == worth:
            lines.append(f"{together[0]}: {time_text(together[1], step_ms)} ms per {whole}")
        found.append(Section(f"finding-{number}", f"{number}  {finding['title']} [{finding['id']}]", tuple(lines)))
    return found


def _finding_lines(finding: Document, step_ms: float | None) -> list[str]:
    saving, added = finding["saving_alone_ms"], finding["saving_ms_per_step"]
    numbers = "no saving claimed"
    if saving > 0:
        more = f", {time_text(added, step_ms)} ms more after the fixes above"
        saves = f"saves {saving_text(finding, step_ms)} ms ({finding['saving_pct']:.0f} %)"
        numbers = (
            f"{saves}, {likely_text(finding, step_ms, ' ms')}{more if abs(added - saving) > 0.05 * saving else ''}"
        )
    ranks = f", rank{'s' * (len(finding['ranks']) > 1)} {rank_ranges(finding['ranks'])}" if finding["ranks"] else ""
    facts = [
        fact_text(fact, step_ms) + (f" ({fact['where']})" if fact["where"] else "") for fact in finding["evidence"]
    ]
    known = [w for w in finding.get("where") or () if w["file"] or w["module"]]
    places = [f"{w['file']}:{w['line']}" if w["file"] else f"module {w['module']}" for w in known]
    at = [f"at {', '.join(places)}"] if places and saving > 0 else []
    return [f"{numbers}{ranks}", capital(finding["cause"]), *facts, *at, f"→ {finding['remedy']}"]


def _unexamined(document: Document) -> list[str]:
    needs: dict[str, list[str]] = {}
    for one in document["not_examined"]:
        needs.setdefault(one["needs"], []).append(one["rule"])
    return [*(f"{', '.join(rules)}: needs {need}" for need, rules in needs.items()), *document["not_judged"]]


def _parts(document: Document, step_ms: float | None, whole: str) -> list[Section]:
    least = _LEAST_PART * (step_ms or 0.0)
    parts = [one for one in shown_parts(document["step"]).items() if one[1] > 0 and one[1] >= least]
    return section_of(
        "parts",
        f"All parts of the {whole}",
        "",
        parts,
        ("part", "text", lambda part: PARTS.get(part[0], part[0])),
        ("time", "ms", lambda part: part[1]),
        ("share", "pct", lambda part: 100 * part[1] / step_ms if step_ms else None),
        most=_ALL,
    )


def _code(document: Document, step_ms: float) -> list[Section]:
    """Return the self time of lines that do more than call others."""
    found = []
    for line in document["code"]:
        own, inclusive = (max(line[f"{of}{where}_ms"] for where in ("host", "device")) for of in ("own_", ""))
        if _LEAST_LINE * step_ms <= own <= step_ms and own >= _MIN_SELF * inclusive:
            found.append((own, line))
    return section_of(
        "code",
        "Lines of code",
        "Self time per step.",
        [line for _, line in sorted(found, key=lambda one: -one[0])],
        ("line", "text", lambda line: f"{line['file']}:{line['line']}"),
        ("host", "ms", "own_host_ms"),
        ("device", "ms", "own_device_ms"),
        ("source", "name", lambda line: (line["source"] or line["function"] or "").strip()),
        most=_ALL,
    )


def _of_ranks(document: Document) -> list[str]:
    ranks, lines = document["ranks"], []
    known = [rank for rank in ranks if rank.get("overlap_pct") is not None]
    if len(ranks) < 2:
        return []
    unknown = [r["rank"] for r in ranks if not r.get("budget_ms_per_step") and r.get("median_step_ms") is None]
    if 0 < len(unknown) < len(ranks):
        why = "not analysed in full" if "ranks_in_full" in document["run"] else "no step was recorded"
        lines.append(f"ranks {rank_ranges(unknown)}: {why}")
    if known:
        overlaps = ", ".join(f"rank {r['rank']} {r['overlap_pct']:.0f} %" for r in known[:16])
        lines.append(f"communication hidden behind compute: {overlaps}")
    last = document["step"].get("late_rank")
    return [*lines, f"last to arrive at most collectives: rank {last}"] if last is not None else lines


def _links(document: Document) -> list[Section]:
    steps = document["run"]["num_steps"] or 1
    return section_of(
        "links",
        "Communication within and between nodes",
        "",
        document.get("links") or (),
        ("span", "text", lambda link: link["span"] or "unknown"),
        ("group", "name", "group"),
        ("in use", "gb_per_s", "used_gb_per_s"),
        ("of", "gb_per_s", "link_gb_per_s"),
        ("exposed", "ms", lambda link: link["exposed_ms"] / steps),
        ("nodes", "count", "nodes"),
        ("ranks", "count", "group_size"),
        ("link", "name", "link"),
        most=_ALL,
    )


def _memory(document: Document) -> list[str]:
    logged = document.get("memory_steps") or ()
    for name, where in (("allocated_bytes", "device memory"), ("host_bytes", "host memory")):
        known = [(one["rank"], [(s, b) for s, b in zip(one["step"], one[name], strict=True) if b]) for one in logged]
        enough = [(rank, points) for rank, points in known if len(points) >= 3]
        if enough:
            rank, points = max(enough, key=lambda one: max(b for _, b in one[1]))
            sizes = [b for _, b in points]
            span = f"{_spark_line(sizes)} min {readable_bytes(min(sizes))}, peak {readable_bytes(max(sizes))}"
            span = f"constant {readable_bytes(max(sizes))}" if min(sizes) > 0.99 * max(sizes) else span
            return [f"{where}, rank {rank}, steps {points[0][0]} to {points[-1][0]}: {span}"]
    return []


def _spark_line(values: Sequence[float], most: int = 24) -> str:
    count = min(len(values), most)
    cuts = [round(i * len(values) / count) for i in range(count + 1)]
    heights = [max(values[a:b]) for a, b in pairwise(cuts)]
    high = max(heights)
    low = min(min(heights), 0.9 * high)  # a change of a few percent is drawn as one
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (h - low) / (high - low)) if high > low else 0] for h in heights)


def _energy(energy: Document | None) -> list[Section]:
    if not energy:
        return []
    lines = [f"unknown: {energy['reason']}"]
    if energy["j_per_step"] is not None:
        per = [f"{joules_text(energy[key])} {of}" for key, of in _JOULES.items() if energy[key] is not None]
        lines = [f"{', '.join(per)} ({energy['source']}, {three_digits(energy['seconds'])} s measured)"]
    for one in energy["parts"]:
        power = "" if one["power_w"] is None else f", {three_digits(one['power_w'])} W"
        spread = f"{three_digits(one['low_j'])}–{three_digits(one['high_j'])}"  # noqa: RUF001
        lines.append(f"{ENERGY[one['part']]}: {joules_text(one['j'])}, {one['pct']:.0f} %, likely {spread} J{power}")
    for one in energy["late_ranks"]:
        waste, waiting, own = (joules_text(one[f"{key}_j_per_step"]) for key in ("waste", "waiting", "own"))
        more = f"others waiting {waiting}, its own device {own}"
        lines.append(f"lateness of rank {one['rank']}: {waste} per step ({more})")
    if energy["host"]:
        lines.append(f"processors of the host: {joules_text(energy['host']['j_per_step'])} per step in addition")
    return _lines("Energy", [*lines, *energy["notes"]])


def _notes(document: Document) -> list[str]:
    lines = document["warnings"]
    return [f"- {line}" for line in lines if not any(line in other and line != other for other in lines)]


def _commands(document: Document, command: Sequence[str], *, is_light: bool) -> list[str]:
    run = " ".join(shlex.quote(printable(word)) for word in command) or "RUN"
    first = next((f for f in document["findings"] if f["saving_alone_ms"] > 0), None)
    commands = []
    if first and first.get("what_if"):
        words = " ".join(shlex.quote(printable(word)) for word in first["what_if"])
        commands.append(f"stepscope whatif {run} {words}")
    commands += [f"stepscope code {run}"] if document["code"] else []
    commands += [] if is_light else [f"stepscope report {run} --html report.html"]
    return [f"  {command}" for command in commands]
