"""The page of `stepscope gate`: verdict, both steps and their change, and the lines that got slower."""

from collections.abc import Mapping
from typing import Any

from stepscope.report.sheet import Section, Sheet, section_of, table_of
from stepscope.units import printable


def gate_sheet(found: Mapping[str, Any]) -> Sheet:
    """Return the page for the content of a `gate.json`."""
    steps = table_of(
        found["changes"],
        ("step", "text", lambda name: name),
        ("base", "ms", lambda name: found["base_step_ms"] if name == "typical" else None),
        ("head", "ms", lambda name: found["head_step_ms"] if name == "typical" else None),
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
