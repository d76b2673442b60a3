"""The sentence that opens every rendering of a report: what to fix first and what it saves."""

from collections.abc import Iterable, Mapping
from typing import Any

from stepscope.contract.names import PART_OF_FAULT, PARTS
from stepscope.units import printable, readable_bytes

#: share of a saving that its range must reach for one number to stand for it
_CLEAR = 0.5
# of a saving that is sure: less counts as nothing
_SURELY = 0.05
# of the step, in percent: a saving that opens the report whatever its range, and a part that was to be examined
_LARGE_PCT = 10.0
# the same of a line that is not part of the training step
_LARGE_LINE_PCT = 5.0
# parts of the budget in which the device waits for a reason that could be removed
_WAITS = ("exposed_transfer", "wait", "pipeline_bubble", "copy", "data_loading", "host_sync", "allocator", "host_stall")

# findings whose fix begins with a source line
_OF_LINES = ("straggler", "host-stall", "host-work", "host-device-sync", "data-loading")


def headline_sentence(document: Mapping[str, Any]) -> str:
    """Return the first finding with the step before and after its fix, from the report's document.

    Rank 2 holds up everyone. Fixing it: 69.0 → 22.3 ms per step (−68 %)

    Where the recording cannot prove what the largest part of the step is, that comes first.
    """
    recording = document.get("recording") or {}
    found = [f for f in document["findings"] if f["saving_alone_ms"] > 0]
    first = next(iter(leading_findings(found)), None)
    step_ms, whole = document["step"]["unprofiled_ms"] or document["step"]["profiled_ms"], _whole(document)
    if document["verdict"] == "unclear" and (recording.get("cannot_show") or first is None):
        reason = f"{document['verdict_reason'][:1].upper()}{document['verdict_reason'][1:]}."
        return f"{reason} Fix 1 {_could_save(found[0], step_ms, whole)}" if found and first is None else reason
    missing = _missing_ranks(document["run"])
    if first is None and (held := unexplained(document)):
        return f"No sure fix was found for {' and '.join(held[:2])}.{missing}"
    if first is None and found:
        return f"No known fix is sure to save anything ({document['verdict']}).{missing}"
    if first is None:
        limits = "; ".join(recording.get("cannot_show") or ())
        shown = f" Not shown: {limits}." if limits else ""
        unexamined = _large_unexamined(document)
        among = " in what was examined" if unexamined else ""
        return f"Nothing worth fixing was found{among} ({document['verdict']}).{missing}{unexamined}{shown}"
    saving_ms = first["saving_alone_ms"]
    if is_bound(first) or first["saving_low_ms"] < _CLEAR * saving_ms:  # one number would claim too much
        saves = _could_save(first, step_ms, whole)
    elif step_ms:
        places = places_of(step_ms)
        left = max(0.0, round(step_ms, places) - round(saving_ms, places))  # of what is shown, so that it adds up
        percent = f"(−{100 * saving_ms / step_ms:.0f} %)"  # noqa: RUF001
        saves = f"{three_digits(step_ms)} → {left:,.{places}f} ms per {whole} {percent}"
    else:
        saves = f"saves {saving_text(first, None)} ms per {whole}"
    verb = "Fixing it" if saves.startswith("could") else "Fixing it:"
    larger = _larger_bound(found, first, step_ms)
    end = "." if missing or larger else ""
    return f"{_subject(first, document['run']['num_ranks'])}. {verb} {saves}{end}{larger}{missing}"


def reasons(document: Mapping[str, Any]) -> list[str]:
    """Return what stands below the headline: what limits the step where no fix is large, and what is not recorded."""
    recording, unclear = document.get("recording") or {}, document["verdict"] == "unclear"
    cannot = recording.get("cannot_show") or ()
    leading = leading_findings(f for f in document["findings"] if f["saving_alone_ms"] > 0)
    found = []
    if not (unclear and (cannot or not leading)) and (not leading or leading[0]["saving_pct"] < _LARGE_PCT):
        found.append(capital(document["verdict_reason"]))  # without the verdict, which may be about something else
    if cannot and not unclear:
        found.append(recording.get("line") or f"Not shown by this recording: {'; '.join(cannot)}")
    return found


def caveats(document: Mapping[str, Any]) -> list[str]:
    """Return what is to be known about the conclusions, a line for the job and one for its numbers."""
    run, step = document["run"], document["step"]
    step_ms = step["unprofiled_ms"] or step["profiled_ms"]
    first = next((f for f in document["findings"] if f["saving_alone_ms"] > 0), None)
    found = []
    if step.get("starved") and step_ms:
        took, waited = three_digits(step_ms + step["core_wait_ms"]), three_digits(step["core_wait_ms"])
        found.append(f"Overloaded machine: a step took {took} ms, {waited} of them waiting for a CPU core.")
        found.append("Times and rates here are without that wait.")
    if run.get("num_devices") and run["num_devices"] < run["num_ranks"]:
        whom, where = ("All ranks", "one device") if run["num_devices"] == 1 else ("Ranks", "devices")
        found.append(f"{whom} share {where} and slow each other down: savings are rough.")
    if run["num_steps"] == 1 and not is_light(document):
        found.append("Only 1 step: maybe a cold start.")
    if first and first["id"] in _OF_LINES and not first.get("where") and not document["code"]:
        found.append("Source lines not recorded.")
    if run["num_steps"] and step["unprofiled_ms"] is None and step["profiled_ms"] is not None:
        how = " (--unprofiled-step-ms subtracts it)" * (not found)  # with other caveats the option does not fit
        found.append(f"Times include profiler overhead{how}.")
    failed = [f"The job failed: {printable(run['failure'])}."] if run.get("failure") and run["num_steps"] else []
    return [*failed, *([" ".join(found)] if found else [])]


def unread(document: Mapping[str, Any]) -> list[str]:
    """Return what could not be read, without the missing ranks that the headline names."""
    return [line for line in document.get("incomplete", ()) if not line.startswith("ranks missing")]


def is_light(document: Mapping[str, Any]) -> bool:
    """Return whether a report is of step logs alone."""
    return not document["run"]["sources"] and document["step"]["profiled_ms"] is None


def unexplained(document: Mapping[str, Any]) -> list[str]:
    """Return the waits and lines that hold so much of the step that "nothing to fix" would be wrong."""
    whole, parts = _whole(document), (document["step"] or {}).get("budget") or ()
    waits = sorted((p for p in parts if p["part"] in _WAITS and p["pct"] >= _LARGE_PCT), key=lambda p: -p["pct"])
    is_training = (document.get("recording") or {}).get("kind") == "training"
    lines = [
        line
        for line in document.get("costly_lines") or ()
        if is_training and line["trains"] is False and (line["pct"] or 0.0) >= _LARGE_LINE_PCT
    ]
    return [
        *(f"{line['file']}:{line['line']} ({line['pct']:.0f} % of the {whole})" for line in lines),
        *(f"{PARTS[p['part']]} ({p['pct']:.0f} % of the {whole})" for p in waits),
    ]


def _larger_bound(found: Iterable[Mapping[str, Any]], first: Mapping[str, Any], step_ms: float | None) -> str:
    """Return the upper bound that exceeds the first finding's saving, as a sentence: the first counts on more."""
    larger = next((f for f in found if is_bound(f) and f["saving_alone_ms"] > first["saving_alone_ms"]), None)
    return "" if larger is None else f" {_subject(larger, 0)} ({saving_text(larger, step_ms)} ms)."


def _could_save(finding: Mapping[str, Any], step_ms: float | None, whole: str) -> str:
    of = f" of {three_digits(step_ms)}" if step_ms else ""
    return f"could save {saving_text(finding, step_ms)}{of} ms per {whole} ({likely_text(finding, step_ms)})"


def leading_findings(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the findings that surely save something, or whose saving is large."""
    return [f for f in findings if f["saving_low_ms"] > _SURELY * f["saving_alone_ms"] or f["saving_pct"] >= _LARGE_PCT]


def saving_text(finding: Mapping[str, Any], step_ms: float | None) -> str:
    """Return a saving in ms.

    >>> saving_text({"saving_alone_ms": 4.54, "at_most": True}, 26.0)
    'at most 4.5'
    """
    return f"{'at most ' * is_bound(finding)}{time_text(finding['saving_alone_ms'], step_ms)}"


def likely_text(finding: Mapping[str, Any], step_ms: float | None, unit: str = "") -> str:
    """Return the likely range of a saving: only its lower end where the saving is an upper bound.

    >>> likely_text({"saving_alone_ms": 4.54, "saving_low_ms": 1.4, "saving_high_ms": 4.54, "at_most": True}, 26.0)
    'likely ≥ 1.4'
    >>> likely_text({"saving_alone_ms": 4.54, "saving_low_ms": 0.1, "saving_high_ms": 9.1}, 26.0, " ms")
    'likely 0–9.1 ms'
    """
    low, high = finding["saving_low_ms"], min(finding["saving_high_ms"], step_ms or finding["saving_high_ms"])
    is_sure = low > _SURELY * finding["saving_alone_ms"]
    if is_bound(finding):
        return f"likely ≥ {two_digits(low)}{unit}" if is_sure else "maybe nothing"
    most = two_digits(high) if float(f"{high:.2g}") >= finding["saving_alone_ms"] else three_digits(high)
    return f"likely {two_digits(low) if is_sure else '0'}–{most}{unit}"  # noqa: RUF001


def fact_text(fact: Mapping[str, Any], step_ms: float | None) -> str:
    """Return one fact of a finding's evidence; everything on a screen is per step."""
    value = fact["value"]
    text = str(value)
    if isinstance(value, int | float):
        text = three_digits(value) if value != int(value) else f"{value:,.0f}"
        text = time_text(value, step_ms) if fact["unit"] == "ms" else text
    if fact["unit"] == "bytes" and isinstance(value, int | float):
        return printable(f"{fact['what']}: {readable_bytes(int(value))}")
    joint = " " if fact["what"].endswith(" in") else ": "
    what = fact["what"].replace(", per step", "").removesuffix(" per step")
    return printable(f"{what}{joint}{text} {fact['unit']}".rstrip())


def together_text(document: Mapping[str, Any], count: int, step_ms: float | None) -> tuple[str, float] | None:
    """Return what the first fixes save together, and in words whether that is the sum; None where nothing is left."""
    saved = document["findings_combined"][count - 1]["saving_ms_per_step"]
    if saved >= 0.99 * (step_ms or 0.0):  # estimates that exceed the step are no joint saving
        return None
    alone = sum(f["saving_alone_ms"] for f in [f for f in document["findings"] if f["saving_alone_ms"] > 0][:count])
    note = " (they overlap)" if saved < 0.995 * alone else " (more than their sum)" if saved > 1.005 * alone else ""
    return f"Fixes 1–{count} together{note}", saved  # noqa: RUF001


def serving_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the steps, requests and tokens of each kind of serving."""
    serving = document.get("serving") or {"kinds": ()}
    lines = []
    for kind in serving["kinds"]:
        name, steps = printable(kind["kind"], width=20), f"{kind['steps']:,} step{'s' * (kind['steps'] != 1)}"
        parts = [f"{name}: {steps} of {three_digits(kind['step_ms'])} ms"]
        counts = ((one, kind[f"{one}s_per_step"]) for one in ("request", "token"))
        parts += [f"{round(n):,} {one}{'s' * (round(n) != 1)}" for one, n in counts if n is not None]
        rate = "" if kind["tokens_per_s"] is None else f" ({kind['tokens_per_s']:,.0f} tokens/s)"
        lines.append(", ".join(parts) + rate)
    if serving.get("generated_per_s"):
        lines.append(f"generated {serving['generated_per_s']:,.0f} tokens/s")
    return lines


def capital(text: str) -> str:
    """Return a text that begins with a capital letter, unless it begins with the name of a file."""
    return text if "." in text.split(" ")[0][:-1] else text[:1].upper() + text[1:]


def is_bound(finding: Mapping[str, Any]) -> bool:
    """Return whether a saving is an upper bound: training may need the work."""
    return bool(finding.get("at_most"))


def time_text(time_ms: float, step_ms: float | None) -> str:
    """Return a part of the step with as many decimals as the step, so that shown times add up; at least two digits.

    >>> time_text(86.01, 100.4), time_text(5.67, 251.0), time_text(1.234, 26.0)
    ('86', '5.7', '1.2')
    """
    return f"{time_ms:,.{places_of(time_ms) if step_ms is None else max(places_of(step_ms), places_of(time_ms) - 1)}f}"


def three_digits(value: float) -> str:
    """Return a number with at most three significant digits, whole numbers in full.

    >>> three_digits(69.04), three_digits(2.954), three_digits(1234.5), three_digits(0.0312)
    ('69.0', '2.95', '1,234', '0.031')
    """
    return f"{value:,.{places_of(value)}f}"


def places_of(value: float) -> int:
    """Return the decimals that make three digits."""
    size = abs(value)
    return 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3


def joules_text(value: float) -> str:
    """Return an energy with three digits.

    >>> joules_text(0.0554), joules_text(227.2), joules_text(68_200)
    ('55.4 mJ', '227 J', '68.2 kJ')
    """
    for unit, least, size in (("MJ", 1e7, 1e6), ("kJ", 1e4, 1e3), ("J", 0.1, 1.0)):
        if value >= least:
            return f"{three_digits(value / size)} {unit}"
    return f"{three_digits(1e3 * value)} mJ"


def two_digits(value: float) -> str:
    """Return a number with two significant digits, as the ends of ranges have.

    >>> two_digits(5.67), two_digits(566.0), two_digits(0.0512)
    ('5.7', '570', '0.051')
    """
    return f"{float(f'{value:.2g}'):,.15g}"


def _subject(finding: Mapping[str, Any], num_ranks: int) -> str:
    ranks = finding["ranks"]
    if finding["id"] == "straggler" and ranks:
        others = "everyone" if num_ranks > 2 else "the other rank"
        if len(ranks) == 1:
            return f"Rank {ranks[0]} holds up {others}"
        return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} hold up {others}"
    title = finding["title"].rstrip(".")
    return capital(title)


def _large_unexamined(document: Mapping[str, Any]) -> str:
    """Return the faults that were not examined although what they would explain is a large part of the step."""
    pct = {row["part"]: row["pct"] for row in (document["step"] or {}).get("budget") or ()}
    rules = [one["rule"] for one in document["not_examined"]]
    rules = [rule for rule in rules if (pct.get(PART_OF_FAULT.get(rule, "")) or 0) >= _LARGE_PCT]
    named = (f"{rule}, up to {pct[PART_OF_FAULT[rule]]:.0f} % of the {_whole(document)}" for rule in rules)
    return f" Not examined: {'; '.join(named)}." if rules else ""


def _whole(document: Mapping[str, Any]) -> str:
    return "step" if document["run"]["num_steps"] else "window"


def _missing_ranks(run: Mapping[str, Any]) -> str:
    read, world = run["num_ranks"], run["world_size"]
    return f" Only {read} of {world} ranks {'was' if read == 1 else 'were'} recorded." if world and read < world else ""
