"""The pages of `stepscope tune` (every setting with its gain, and what to keep) and `stepscope gate`."""

from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.report.sheet import Section, Sheet, section_of, table_of
from stepscope.units import printable


def tune_sheet(found: Mapping[str, Any]) -> Sheet:
    """Return the page for the content of a `tune.json`."""
    named = [f"{f['id']} ({f['saving_pct']:.0f} %)" for f in found["first_report"]["findings"][:4]]
    minutes, seconds = divmod(round(found["wall_s"]), 60)
    unchanged = {"name": "as it is", "step_ms": found["unchanged_step_ms"]}
    table = table_of(
        [unchanged, *found["settings"]],
        ("setting", "text", "name"),
        ("step", "ms", "step_ms"),
        ("gain", "pct", lambda row: row.get("gain_pct")),
        ("from", "pct", lambda row: row.get("gain_low_pct")),
        ("to", "pct", lambda row: row.get("gain_high_pct")),
        ("", "text", lambda row: "kept" if row.get("kept") else row.get("why_not", "")),
    )
    left_out = section_of(
        "left-out", "Not tried", "", found["not_tried"], ("setting", "text", "name"), ("reason", "text", "why")
    )
    return Sheet(
        f"{found['tried']} settings tried in {found['rounds']} rounds",
        (
            f"{len(found['trials'])} trials of {found['warmup_steps']} + {found['timed_steps']} steps",
            f"{minutes} min {seconds} s",
            f"first report: {', '.join(named)}" if named else "first report: nothing worth fixing was found",
        ),
        (),
        (Section("settings", "Settings", (), table=table), *left_out, Section("keep", "Keep", tuple(_advice(found)))),
        ("stopped before all rounds had run: judged by those that had",) if found["stopped"] else (),
    )


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    keep = found["keep"]
    if keep is None:
        yield "Nothing to keep: no setting is faster beyond chance with the same results."
        return
    between = f"{keep['gain_low_pct']:.0f} to {keep['gain_high_pct']:.0f} %"
    yield f"Keep {keep['name']}: the step takes {keep['gain_pct']:.0f} % less ({between}). Results: {keep['results']}."
    for line in keep["in_the_script"].split("; ") if keep["settings"] else ():
        if "(" in line or "torch." in line:
            yield f"  {line}"


def commands_of(found: Mapping[str, Any]) -> list[str]:
    """Return the commands that run the job with what is kept."""
    keep = found["keep"] or {}
    unchanged = found["command_unchanged_script"]
    return [
        *([found["command_to_keep"]] if keep.get("environment") else []),
        *([f"without a change of the script: {unchanged}"] if unchanged else []),
    ]


# The page of `stepscope gate`: verdict, both steps and their change, and the lines that got slower.


def gate_sheet(found: Mapping[str, Any]) -> Sheet:
    """Return the page for the content of a `gate.json`."""
    steps = table_of(
        found["changes"],
        ("step", "text", lambda name: name),
        ("base", "ms", lambda name: found["base_step_ms"] if name == found["step"] else None),
        ("head", "ms", lambda name: found["head_step_ms"] if name == found["step"] else None),
        ("change", "signed_pct", lambda name: found["changes"][name]["pct"]),
        ("from", "signed_pct", lambda name: found["changes"][name]["low_pct"]),
        ("to", "signed_pct", lambda name: found["changes"][name]["high_pct"]),
    )
    lines = section_of(
        "lines",
        "Source lines that got slower",
        "",
        found["lines"],
        ("line", "text", lambda one: f"{one['file']}:{one['line']}"),
        ("base", "ms", "base_ms"),
        ("head", "ms", "head_ms"),
        ("", "verdict", "what"),
        ("source", "name", lambda one: (one["source"] or "").strip()),
    )
    reason = f"{found['reason'][:1].upper()}{found['reason'][1:]}."
    return Sheet(
        f"Training step: {found['verdict']}",
        (),
        (),
        (Section("steps", "Change of the step", (reason,), table=steps), *lines),
        tuple(note for note in (found["lines_reason"], _method(found)) if note),
    )


def _method(found: Mapping[str, Any]) -> str:
    stopped = " before it was stopped" if found["stopped"] else ""
    sides = [f"{side} ({printable(found[side]['name'])})" for side in ("base", "head")]
    how = f"restarted in every round ({found['no_turns_reason']})" if found["no_turns_reason"] else "in turn"
    return (
        f"{found['rounds']} rounds of {found['steps_per_trial']} steps in {found['starts']} starts, "
        f"{' and '.join(sides)} {how}{stopped}{_waits(found)}; threshold {found['threshold_pct']:g} %; at most "
        f"{found['false_alarm_pct']:g} % of changes without any effect raise a false alarm"
    )


def _waits(found: Mapping[str, Any]) -> str:
    waits = [found[f"{side}_core_wait_ms"] for side in ("base", "head")]
    if max(waits) < 0.01 * found["base_step_ms"]:
        return ""
    return f"; waits for a core subtracted ({waits[0]:.3g} and {waits[1]:.3g} ms per step)"
