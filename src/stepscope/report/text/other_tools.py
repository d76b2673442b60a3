"""The report of files of other tools on the terminal: who hangs, what NCCL logged, what Nsight Compute measured."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.document.other_tools import nccl_calls, nccl_facts, size_text
from stepscope.report.terminal import name_text, number_text, print_indented, print_table
from stepscope.units import printable

_MAX_WIDTH = 1000
_MAX_ROWS = 20


def print_files(document: Mapping[str, Any], out: Console) -> None:
    """Print what the files show, each tool under its name."""
    formats = dict.fromkeys(one["format"] for one in document["files"])
    out.print(name_text(document["run"]["name"], style="bold").append(f"  {', '.join(formats)}", style="not bold"))
    if hang := document["hang"]:
        _title(f"Flight recorder, {len(hang['ranks'])} ranks", out)
        for line in hang["conclusions"]:
            print_indented(out, Text(printable(line, width=_MAX_WIDTH)), first="  - ", indent="    ")
        print_table(
            out,
            document["recorded_calls"][:_MAX_ROWS],
            ("operation", lambda row: printable(row["op"])),
            ("calls of a rank", lambda row: f"{row['calls']:,}"),
            ("group", lambda row: printable(row["group"], width=24)),
            ("called at", lambda row: printable(row["place"], width=48)),
            least_needed=("group",),
        )
    if document["nccl"]:
        _title("NCCL log", out)
        for line in nccl_facts(document["nccl"]):
            print_indented(out, Text(printable(line, width=_MAX_WIDTH)), first="  ", indent="    ")
        if calls := nccl_calls(document["nccl"]):
            print_table(
                out,
                calls[:_MAX_ROWS],
                ("operation", lambda row: printable(row["op"])),
                ("size", lambda row: size_text(row["size_bytes"])),
                ("calls of a rank", lambda row: number_text(row["calls"], ",")),
                ("algorithm", lambda row: printable(row["algorithm"] or "?")),
            )
    if document["collectives_live"]:
        _title("NCCL inspector", out)
        print_table(
            out,
            document["collectives_live"][:_MAX_ROWS],
            ("rank", lambda row: str(row["rank"])),
            ("operation", lambda row: printable(row["op"])),
            ("group", lambda row: printable(row["group_desc"], width=24)),
            ("calls", lambda row: f"{row['count']:,}"),
            ("ms", lambda row: number_text(row["time_ms"], ".2f")),
            ("busbw GB/s", lambda row: number_text(row["busbw_gb_per_s"], ".1f")),
            least_needed=("group",),
        )
    if document["kernels"]:
        _title("Measured kernels (each launch alone, with fixed clocks: not the times of training)", out)
        print_table(
            out,
            document["kernels"][:_MAX_ROWS],
            ("kernel", lambda row: printable(row["function"], width=32)),
            ("launches", lambda row: f"{row['count']:,.0f}"),
            ("mean us", lambda row: number_text(row["mean_ms"] and 1000 * row["mean_ms"], ".1f")),
            *((f"{title} %", _cell(key)) for title, key in (("SM", "sm_pct"), ("DRAM", "dram_pct"))),
            ("bound", lambda row: row["bound"] or "?"),
            least_needed=("bound",),
        )
    for line in document["warnings"]:
        print_indented(out, Text(f"note: {printable(line, width=_MAX_WIDTH)}", style="bright_black"), indent="  ")


def _title(text: str, out: Console) -> None:
    out.print()
    out.print(Text(text, style="bold"))


def _cell(key: str) -> Any:
    return lambda row: number_text(row[key], ".0f")
