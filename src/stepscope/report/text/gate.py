"""What `stepscope gate` found: lines of 80 columns, and Markdown for a pull request."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.units import printable

_WIDTH = 80


def gate_lines(found: Mapping[str, Any]) -> list[str]:
    """Return the lines for the content of a `gate.json`."""
    return [*_wrapped(f"{found['verdict'].capitalize()}: {found['reason']}."), "", *_table(found), *_lines(found)]


def gate_markdown(found: Mapping[str, Any]) -> str:
    """Return the content of a `gate.json` as Markdown."""
    rows = [
        f"### Training step: {found['verdict']}",
        "",
        f"{found['reason'][:1].upper()}{found['reason'][1:]}.",
        "",
        "| step | base ms | head ms | change % | interval % |",
        "|---|---:|---:|---:|---:|",
        *(f"| {' | '.join(cells)} |" for cells in _cells(found)),
        "",
    ]
    if found["lines"]:
        rows += ["| source line | base ms | head ms | |", "|---|---:|---:|---|"]
        for one in found["lines"]:
            text = _code(f"{one['file']}:{one['line']}")
            source = f" {_code(one['source'].strip())}" if one["source"] else ""
            rows.append(f"| {text}{source} | {one['base_ms']:.2f} | {one['head_ms']:.2f} | {one['what']} |")
        rows.append("")
    elif found["lines_reason"]:
        rows += [f"{_escaped(found['lines_reason'])}.", ""]
    return "\n".join([*rows, f"<sub>{_escaped(_method(found))}</sub>", ""])


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    form = "{:<10}{:>11}{:>11}{:>11}  {:>18}"
    yield form.format("step", "base ms", "head ms", "change %", "interval %")
    for cells in _cells(found):
        yield form.format(*cells).rstrip()
    yield ""
    yield from _wrapped(_method(found))


def _cells(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, change in found["changes"].items():
        steps = [f"{found[f'{side}_step_ms']:.2f}" if name == "typical" else "" for side in ("base", "head")]
        yield name, *steps, f"{change['pct']:+.1f}", f"{change['low_pct']:+.1f} to {change['high_pct']:+.1f}"


def _method(found: Mapping[str, Any]) -> str:
    stopped = " before it was stopped" if found["stopped"] else ""
    sides = [f"{side} ({printable(found[side]['name'])})" for side in ("base", "head")]
    return (
        f"{found['rounds']} rounds of {found['steps_per_trial']} steps in {found['starts']} starts, "
        f"{' and '.join(sides)} in turn{stopped}{_waits(found)}; threshold {found['threshold_pct']:g} %; at most "
        f"{found['false_alarm_pct']:g} % of changes without any effect raise a false alarm"
    )


def _waits(found: Mapping[str, Any]) -> str:
    waits = [found[f"{side}_core_wait_ms"] for side in ("base", "head")]
    if max(waits) < 0.01 * found["base_step_ms"]:
        return ""
    return f"; waits for a core subtracted ({waits[0]:.3g} and {waits[1]:.3g} ms per step)"


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    if found["lines"]:
        yield ""
        yield f"{'source line':<44}{'base ms':>10}{'head ms':>10}"
    for one in found["lines"]:
        place = printable(f"{one['file']}:{one['line']}")
        yield f"{place:<44}{one['base_ms']:>10.2f}{one['head_ms']:>10.2f}  {one['what']}"
        if one["source"]:
            yield f"    {printable(one['source'].strip(), width=_WIDTH - 4)}"
    if found["lines_reason"]:
        yield from ("", *_wrapped(printable(found["lines_reason"], width=400)))


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _code(text: str) -> str:
    shown = printable(text, width=120).replace("|", "\\|").replace("`", "'")
    return f"`{shown}`"


def _escaped(text: str) -> str:
    shown = printable(text, width=600)
    for sign, safe in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|")):
        shown = shown.replace(sign, safe)
    return shown
