"""The history of runs on one screen, from its JSON: the last runs, groups, what changed, hosts that are slow."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from stepscope.report.terminal import name_text, number_text, print_indented, print_table, row_name

_MAX_RUNS = 20
_MAX_GROUPS = 20
_MAX_LINES = 5
_SHORT_COMMIT = 10
_MAX_LINE = 500
Document = Mapping[str, Any]


def print_history(document: Document, out: Console) -> None:
    """Print the history of a folder of runs."""
    runs = document["runs"]
    goodput = [("goodput %", lambda run: number_text(run["goodput_pct"], ",.1f"))]
    if not any(run["goodput_pct"] is not None for run in runs):
        goodput = []
    out.print(name_text(document["folder"], style="bold").append(f": {len(runs)} runs"))
    print_table(
        out,
        runs[-_MAX_RUNS:],
        ("run", lambda run: row_name(run["run"], width=40)),
        ("created", lambda run: row_name((run["created"] or "?")[:16].replace("T", " "), width=16)),
        ("commit", lambda run: row_name(_commit(run["commit"]), width=_SHORT_COMMIT)),
        ("ranks", lambda run: number_text(run["world_size"], ",.0f")),
        ("step ms", lambda run: number_text(run["step_ms"], ",.2f")),
        ("MFU %", lambda run: number_text(run["mfu"] and 100 * run["mfu"], ",.1f")),
        *goodput,
        ("memory GB", lambda run: number_text(run["peak_memory_bytes"] and run["peak_memory_bytes"] / 1e9, ",.2f")),
        (
            "largest finding",
            lambda run: row_name("".join(f"{f} {p:.0f} %" for f, p in run["findings"][:1]), width=34),
        ),
        least_needed=("created", "memory GB", "goodput %", "MFU %", "ranks", "largest finding"),
    )
    if len(runs) > _MAX_RUNS:
        out.print(f"the last {_MAX_RUNS} of {len(runs)} runs; --json has all")
    found, by = document["groups"], document["by"]
    out.print()
    print_table(
        out,
        found[-_MAX_GROUPS:],
        (f"by {by}", lambda g: row_name(_commit(g["name"]) if by == "commit" else g["name"], width=60)),
        ("runs", lambda g: str(g["runs"])),
        ("step ms", lambda g: number_text(g["step_ms"], ",.2f")),
        ("from", lambda g: number_text(g["min_step_ms"], ",.2f")),
        ("to", lambda g: number_text(g["max_step_ms"], ",.2f")),
        ("MFU %", lambda g: number_text(g["mfu"] and 100 * g["mfu"], ",.1f")),
        ("memory GB", lambda g: number_text(g["peak_memory_bytes"] and g["peak_memory_bytes"] / 1e9, ",.2f")),
        ("often found", lambda g: row_name(", ".join(g["findings"]), width=50)),
        least_needed=("memory GB", "MFU %", "often found", "from", "to"),
    )
    if len(found) > _MAX_GROUPS:
        out.print(f"the last {_MAX_GROUPS} of {len(found)}; --json has all")
    _newest(document["newest"], out)
    _hosts(document, out)
    problems = [run for run in runs if run["problem"]]
    for run in problems[:_MAX_LINES]:
        _line(out, f"! {run['run']}: {run['problem']}")
    if len(problems) > _MAX_LINES:
        out.print(f"! and {len(problems) - _MAX_LINES} more runs without numbers; --json has all")


def _newest(found: Sequence[Document], out: Console) -> None:
    out.print()
    for one in found[:_MAX_LINES]:
        name = f"{one['run']} ({_commit(one['commit'])})" if one["commit"] else one["run"]
        if one["verdict"] == "unknown":
            _line(out, f"newest {name}: {one['step_ms']:.2f} ms; {_earlier(one['before'])}; 4 needed")
            continue
        usual = f"{_earlier(one['before'])}: {one['usual_ms']:.2f} ms"
        bounds = f"95 % prediction interval {one['low_ms']:.2f}–{one['high_ms']:.2f} ms"  # noqa: RUF001
        _line(
            out,
            f"newest {name}: {one['verdict']}, {one['step_ms']:.2f} ms ({one['change_pct']:+.1f} %); {usual}, {bounds}",
        )
    if len(found) > _MAX_LINES:
        out.print(f"and {len(found) - _MAX_LINES} more configurations; --json has all")


def _earlier(count: int) -> str:
    return f"{count or 'no'} earlier run{'s' * (count != 1)}"


def _hosts(document: Document, out: Console) -> None:
    hosts = document["hosts"]
    if not hosts:
        _line(out, "hosts: no run on several hosts to compare")
        return
    slow = [one for one in hosts if one["is_slow"]]
    for one in slow[:_MAX_LINES]:
        _line(
            out,
            f"slow host {one['host']}: slowest in {one['slowest']} of {one['runs']} jobs (expected "
            f"{one['expected']:.1f}), {100 * (one['slowdown'] - 1):.0f} % slower than the others, "
            f"p {_p(one['p_value'])} for {len(hosts)} hosts",
        )
    for one in [h for h in hosts if h["why_not"]][:_MAX_LINES]:
        _line(out, f"host {one['host']} is an outlier (p {_p(one['p_value'])}) but is not named: {one['why_not']}")
    if not slow:
        _line(out, f"hosts: none of {len(hosts)} is slow beyond chance")


def _line(out: Console, text: str) -> None:
    print_indented(out, name_text(text, width=_MAX_LINE), indent="  ")


def _commit(commit: str | None) -> str:
    return commit[:_SHORT_COMMIT] if commit else "?"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"= {value:.3f}"
