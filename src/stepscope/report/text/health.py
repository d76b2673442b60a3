"""The health of a run on the terminal, from the report's JSON: a table of ranks, the checks, gates and guides."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.compare.conditions import GateResult
from stepscope.contract.names import words
from stepscope.document.sentence import headline_sentence, three_digits
from stepscope.report.terminal import name_text, number_text, plain_table, print_fitting, print_indented, print_table

Json = Mapping[str, Any]

_MAX_RANKS = 32
_STYLE = {"pass": "green", "borderline": "yellow", "fail": "bold red", "not measured": "bright_black"}
#: parts of the step by column; together they are the step
_COLUMNS = {
    "compute": ("forward", "backward", "optimizer", "other_compute"),
    "exposed comm": ("exposed_transfer",),
    "wait": ("wait", "pipeline_bubble"),
    "data": ("data_loading",),
    "copies": ("copy",),
    "host": ("launch_gap", "host_sync", "allocator", "host_stall"),
    "unknown": ("unknown",),
}


def print_health(document: Json, gates: Sequence[GateResult], out: Console) -> None:
    """Print the table of ranks, late ranks, what fails and whether the gates hold."""
    run, step, checks = document["run"], document["step"], document["checks"]
    whole = "step" if run["num_steps"] else "window"
    line = name_text(run["name"], style="bold").append(f"  {_count(run['num_ranks'], 'rank')}", style="not bold")
    line.append(f", {_count(run['num_steps'], 'step')}", style="not bold")
    for known in ("unprofiled", "profiled"):
        if step[f"{known}_ms"] is not None:
            line.append(f", {whole} {three_digits(step[f'{known}_ms'])} ms {known}", style="not bold")
            break
    out.print(line)
    print_indented(out, name_text(headline_sentence(document), width=400, style="bold"), indent="  ")
    _print_ranks(document, whole, out)
    if not document["stragglers"]:
        out.print("stragglers: none" if run["num_ranks"] > 1 else "stragglers: not applicable to one rank")
    for s in document["stragglers"]:
        often = f"in {s['steps_late']} of {s['num_steps']} steps"
        own = f"own time {three_digits(s['late_ms_per_step'])} ms above the median rank"
        late = f"straggler: rank {s['rank']}, late {often} (cause: {s['cause']}); {own}"
        out.print(Text(late, style="bold red"))
    print_table(
        out,
        checks,
        ("check", lambda c: words(c["id"])),
        ("value", lambda c: number_text(c["value"], ".1f")),
        ("good", lambda c: c["good"]),
        ("bad", lambda c: c["bad"] or "-"),
        ("status", _status_text),
        least_needed=("bad", "good"),
    )
    for c in checks:
        if c["status"] == "fail":
            print_indented(out, Text(f"{words(c['id'])}: {c['reason']}"), indent="  ")
    unmeasured = [c for c in checks if c["status"] == "not measured"]
    for reason in dict.fromkeys(c["reason"] for c in unmeasured):
        same = ", ".join(words(c["id"]) for c in unmeasured if c["reason"] == reason)
        print_indented(out, Text(f"{same}: not measured, {reason}", style="bright_black"), indent="  ")
    for result in gates:
        held = Text("passed: ", style="green") if result.holds else Text("failed: ", style="bold red")
        print_indented(out, held.append(f"{result.gate}; {result.said}", style=""), indent="  ")


def _status_text(check: Json) -> Text:
    """Return the status; a value between good and bad does not pass, and is no clear failure either."""
    status = "borderline" if check["reason"].startswith("borderline") else check["status"]
    return Text(status, style=_STYLE[status])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _print_ranks(document: Json, whole: str, out: Console) -> None:
    late = {s["rank"]: s for s in document["stragglers"]}
    rows: dict[int, dict[str, float]] = {}
    for rank in document["ranks"]:
        if parts := rank["budget_ms_per_step"]:
            rows[rank["rank"]] = {name: sum(parts.get(part, 0.0) for part in of) for name, of in _COLUMNS.items()}
    most = {name: max((times[name] for times in rows.values()), default=0.0) for name in _COLUMNS}
    longest = max((sum(times.values()) for times in rows.values()), default=0.0)
    shown = [name for name in _COLUMNS if most[name] >= 0.0005 * longest]
    places = 0 if longest >= 100 else 1 if longest >= 10 else 2 if longest >= 1 else 3  # as in the report
    table = plain_table(out, f"rank, ms per {whole}", whole, *shown, *(["late"] if late else []))
    first = sorted(rows, key=lambda rank: rank not in late)[:_MAX_RANKS]
    for rank in sorted(first):
        times = (sum(rows[rank].values()), *(rows[rank][name] for name in shown))
        cause = [late[rank]["cause"] if rank in late else ""] if late else []
        cells = [*(f"{time_ms:,.{places}f}" for time_ms in times), *cause]
        table.add_row(str(rank), *cells, style="bold red" if rank in late else "")
    print_fitting(table, out, least_needed=sorted(shown, key=lambda name: most[name])[:-1])
    if len(rows) > _MAX_RANKS:
        out.print(f"... {len(rows) - _MAX_RANKS} more ranks: --json")


def print_guides(guides: Sequence[Json], out: Console) -> None:
    """Print every item of the guides that apply, with its number and, where it fails, what to do."""
    if not guides:
        out.print("guides: none applies")
    for guide in guides:
        out.print()
        out.print(Text(guide["title"], style="bold").append(f"  {guide['why']}", style=""))
        for item in guide["items"]:
            check = item["check"]
            value = "" if check["value"] is None else f"{check['value']:.4g} (good {check['good']})"
            status = _status_text(check)
            line = Text("  ").append(f"{status.plain:<13}", style=status.style)
            line.append(f"{words(check['id']):<24} {value:<24} ").append(check["reason"], style="bright_black")
            out.print(line.append(f"\n{'':<15}-> {item['remedy']}") if check["status"] == "fail" else line)
