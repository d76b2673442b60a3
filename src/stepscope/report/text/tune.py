"""What `stepscope tune` found, in lines of 80 columns: every setting with its gain, and what to keep."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.units import printable

_WIDTH = 80
_NAME = 44
_NUMBERS = "{:>9}  {:>6}  {:>14}"


def tune_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines for the content of a `tune.json`."""
    return [*_header(found), "", *_table(found), *_reasons(found), "", *_advice(found)]


def _header(found: Mapping[str, Any]) -> Iterator[str]:
    named = [f"{f['id']} ({f['saving_pct']:.0f} %)" for f in found["first_report"]["findings"][:4]]
    first = f"first report: {', '.join(named)}" if named else "first report: nothing worth fixing was found"
    yield from _wrapped(first)
    minutes, seconds = divmod(round(found["wall_s"]), 60)
    steps = f"{found['warmup_steps']} + {found['timed_steps']} steps"
    yield from _wrapped(
        f"{found['tried']} settings tried in {found['rounds']} rounds, {len(found['trials'])} trials of {steps}, "
        f"{minutes} min {seconds} s"
    )
    if found["stopped"]:
        yield from _wrapped("stopped before all rounds had run: judged by those that had")


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    yield f"  {'setting':<{_NAME}}{_NUMBERS.format('step ms', 'gain %', 'interval')}"
    yield f"  {'as it is':<{_NAME}}{_NUMBERS.format(_ms(found['unchanged_step_ms']), '', '')}".rstrip()
    for row in found["settings"]:
        mark = "*" if row["kept"] else " "
        value = row["gain_pct"]
        numbers = _NUMBERS.format(_ms(row["step_ms"]), ("" if value is None else f"{value:+.1f}"), _interval(row))
        for part in _name_lines(row["name"])[:-1]:
            yield f"{mark} {part}"
            mark = " "
        yield f"{mark} {_name_lines(row['name'])[-1]:<{_NAME}}{numbers}".rstrip()


def _name_lines(name: str) -> list[str]:
    return textwrap.wrap(printable(name, width=400), _NAME, break_long_words=True) or [""]


def _reasons(found: Mapping[str, Any]) -> Iterator[str]:
    if any(row["kept"] for row in found["settings"]):
        yield "  * the interval is above 0, and the results agree"
    for row in found["settings"]:
        if not row["kept"]:
            yield from _wrapped(f"  {row['name']}: {row['why_not']}")
    for row in found["not_tried"]:
        yield from _wrapped(f"  {row['name']}: not tried, {row['why']}")


def _advice(found: Mapping[str, Any]) -> Iterator[str]:
    keep = found["keep"]
    if keep is None:
        yield "Nothing to keep: no setting is faster beyond chance with the same results."
        return
    yield from _wrapped(f"Keep {keep['name']}: the step takes {keep['gain_pct']:.0f} % less ({_range(keep)} %).")
    yield from _wrapped(f"Results: {keep['results']}.")
    if keep["environment"]:
        yield f"    {found['command_to_keep']}"
    for line in keep["in_the_script"].split("; ") if keep["settings"] else ():
        if "(" in line or "torch." in line:
            yield f"    {line}"
    if found["command_unchanged_script"]:
        yield "or, without a change of the script:"
        yield f"    {found['command_unchanged_script']}"


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _interval(row: Mapping[str, Any]) -> str:
    return "" if row["gain_low_pct"] is None else f"{row['gain_low_pct']:+.0f} to {row['gain_high_pct']:+.0f}"


def _range(row: Mapping[str, Any]) -> str:
    return f"{row['gain_low_pct']:.0f} to {row['gain_high_pct']:.0f}"


def _wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(
        printable(line.strip(), width=2000), _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  "
    )
