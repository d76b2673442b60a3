"""A comparison on the terminal, from its JSON: the step, its parts, kernels, operators, lines and findings."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.contract.names import FINDING_STATUS, PARTS
from stepscope.document.sentence import three_digits
from stepscope.report.terminal import name_text, plain_table, print_fitting, print_indented, print_table, row_name

_MAX_PARTS = 8
_MAX_ROWS = 6
_MAX_FINDINGS = 6
#: metric -> its title and the factor to the title's unit
_SHOWN = {
    "step.tokens_per_s": ("tokens/s", 1),
    "step.samples_per_s": ("samples/s", 1),
    "efficiency.mfu": ("MFU, %", 100),
    "step.overlap_efficiency": ("overlap efficiency", 1),
}
_STYLE = {"slower": "red", "faster": "green", "appeared": "red", "vanished": "green", "new": "red", "grew": "red",
          "resolved": "green", "mostly resolved": "green"}  # fmt: skip

Document = Mapping[str, Any]


def print_comparison(document: Document, out: Console) -> None:
    """Print the comparison of two sides of runs."""
    _heading(document, out)
    _step(document, out)
    _budget(document["budget"], out)
    metrics = document["metrics"]
    for name, (title, scale) in _SHOWN.items():
        for m in (m for m in metrics if m["name"] == name and m["change"] is not None):
            interval = m["reason"] or f"95 % interval {_pct_interval(m)} %"
            change = "from 0" if m["change_pct"] is None else f"{_signed(m['change_pct'], 1)} %"
            values = " → ".join(three_digits(scale * m[side]) for side in ("a", "b"))
            out.print(f"{title}  {values}  {change}  ({interval})")
    for what in ("kernels", "operators"):
        _rows(what, document[what], document[f"{what}_changed"], out)
    _code(document["code"], out)
    findings = document["findings"]
    if not findings:
        out.print("findings: none on either side")
    for f in findings[:_MAX_FINDINGS]:
        status = FINDING_STATUS[f["what"]]
        line = Text(status, style=_STYLE.get(status, "")).append(": ", style="not bold")
        line.append_text(name_text(f"{f['title']} [{f['id']}]", width=100))
        print_indented(out, line.append(_saving(f)), indent="  ")
    if len(findings) > _MAX_FINDINGS:
        out.print(f"… {len(findings) - _MAX_FINDINGS} more findings (--json)")
    _end(document, out)


def print_bench_comparison(document: Document, out: Console) -> None:
    """Print the comparison of two sides of benchmarks, a line per series."""
    _heading(document, out)
    print_table(
        out,
        document["series"],
        ("series", lambda s: row_name(s["name"], width=50)),
        ("A ms", lambda s: _number(s["step_ms"]["a"])),
        ("B ms", lambda s: _number(s["step_ms"]["b"])),
        ("change %", lambda s: _signed(s["step_ms"]["change_pct"], 1)),
        ("95 % interval", lambda s: _pct_interval(s["step_ms"])),
        ("runs", lambda s: " and ".join(map(str, s["num_runs"]))),
        ("", lambda s: _marked(s["verdict"])),
        least_needed=("runs", "95 % interval"),
    )
    for s in document["series"]:
        if s["config_changes"]:
            out.print(name_text(f"{s['name']}: {', '.join(s['config_changes'])}", width=200, style="bright_black"))
    for side in ("a", "b"):
        if document[f"only_{side}"]:
            out.print(name_text(f"only in {side.upper()}: {', '.join(document[f'only_{side}'])}", width=300))
    _end(document, out)


def _heading(document: Document, out: Console) -> None:
    line = name_text(document["a"]["name"], style="bold").append(" (A) against ")
    out.print(line.append_text(name_text(document["b"]["name"], style="bold")).append(" (B)"))


def _step(document: Document, out: Console) -> None:
    step, verdict = document["step_ms"], document["verdict"]
    opening = f"B is {verdict}" if verdict in ("slower", "faster") else f"{verdict[:1].upper()}{verdict[1:]}"
    line = Text(opening, style=f"bold {_STYLE.get(verdict, '')}".strip())
    if step["a"] is not None and step["b"] is not None:
        times = f": {_number(step['a'])} → {_number(step['b'])} ms per step ({document['basis']})"
        line.append(f"{times}, {_signed(step['change_pct'], 1)} %", style="not bold")
    if step["p_value"] is not None:
        line.append(f"; 95 % interval {_pct_interval(step)} %, p {_p(step['p_value'])}", style="not bold")
    print_indented(out, line, indent="  ")
    steps = " and ".join(str(sum(r["num_steps"] for r in document[s]["runs"])) for s in ("a", "b"))
    if step["smallest_detectable"] is not None:
        least = f"{_number(step['smallest_detectable'])} ms ({step['smallest_detectable_pct']:.1f} %)"
        print_indented(out, Text(f"{steps} steps; smallest detectable change {least}, at 80 % power"), indent="  ")
    out.print()


def _budget(parts: Sequence[Document], out: Console) -> None:
    if not parts:
        return
    table = plain_table(out, "part of the step", "A ms", "B ms", "change ms", "95 % interval", "")
    shown = sorted(parts, key=lambda p: -abs(p["change"]))
    for p in shown[:_MAX_PARTS]:
        table.add_row(
            PARTS[p["part"]],
            _number(p["a"]),
            _number(p["b"]),
            _signed(p["change"]),
            ("none" if p["low"] is None else f"{_signed(p['low'])} to {_signed(p['high'])}"),
            _marked(p["what"]),
        )
    rest = shown[_MAX_PARTS:]
    if rest:
        table.add_row(f"{len(rest)} other parts", *(_number(sum(p[k] for p in rest)) for k in ("a", "b")),
                      _signed(sum(p["change"] for p in rest)), "", "")  # fmt: skip
    total = [sum(p[k] for p in parts) for k in ("a", "b", "change")]
    table.add_row("all parts", _number(total[0]), _number(total[1]), _signed(total[2]), "", "", style="bold")
    print_fitting(table, out, least_needed=("95 % interval",))


def _rows(what: str, rows: Sequence[Document], count: int, out: Console) -> None:
    marked = [r for r in rows if r["what"] != "no difference found"]
    if not marked:
        out.print(f"{what}: no significant change")
        return
    print_table(
        out,
        marked[:_MAX_ROWS],
        (what, lambda r: row_name(r["name"], width=48)),
        ("A ms", lambda r: _number(r["a"])),
        ("B ms", lambda r: _number(r["b"])),
        ("change ms", lambda r: _signed(r["change"])),
        ("A calls", lambda r: f"{r['a_count']:.4g}"),
        ("B calls", lambda r: f"{r['b_count']:.4g}"),
        ("", lambda r: _marked(r["what"])),
        least_needed=("A calls", "B calls"),
    )
    if count > _MAX_ROWS:
        out.print(f"… of {count} {what} that differ (--json, --html list more)")


def _code(lines: Sequence[Document], out: Console) -> None:
    slower = [line for line in lines if line["change"] > 0][:_MAX_ROWS]
    if not slower:
        return
    table = plain_table(out, "slower lines of code", "A ms", "B ms", "change ms", "")
    for line in slower:
        place = f"{line['file']}:{line['line']}  {(line['source'] or '').strip()}"
        cells = [_number(line["a"]), _number(line["b"]), _signed(line["change"])]
        table.add_row(row_name(place, width=60), *cells, _marked(line["what"]))
    print_fitting(table, out)


def _end(document: Document, out: Console) -> None:
    for gate in document["gates"]:
        held = Text("passed: ", style="green") if gate["holds"] else Text("failed: ", style="bold red")
        print_indented(out, held.append_text(name_text(f"{gate['fail_on']}; {gate['said']}", width=300)), indent="  ")
    for note in document["notes"]:
        print_indented(out, Text("! ", style="yellow").append_text(name_text(note, width=300)), indent="  ")


def _marked(what: str) -> Text:
    return Text("" if what == "no difference found" else what, style=_STYLE.get(what, ""))


def _saving(finding: Document) -> str:
    a, b = finding["a_saving_ms"], finding["b_saving_ms"]
    return f": possible saving {_number(a)} → {_number(b)} ms per step" if a or b else ""


def _number(value: float | None) -> str:
    if value is None:
        return "?"
    return f"{value:.2f}" if abs(value) >= 1 or not value else f"{value:.3f}"


def _signed(value: float | None, places: int | None = None) -> str:
    if value is None:
        return "?"
    if places is not None:
        return f"{value:+,.{places}f}"
    return f"{value:+.2f}" if abs(value) >= 1 or not value else f"{value:+.3f}"


def _pct_interval(row: Document) -> str:
    if row.get("low_pct") is None or row.get("high_pct") is None:
        return "unknown"
    return f"{_signed(row['low_pct'], 1)} to {_signed(row['high_pct'], 1)}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
