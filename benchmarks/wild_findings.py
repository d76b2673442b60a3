"""Planted faults of ordinary jobs: is the planted line named, and is its saving what deleting it really saved?

    benchmarks/wild_findings.py RUNS TRUTH.json JOB.py

RUNS has one run folder per fault, `<workload>_<fault>`, recorded with owners. TRUTH.json gives for `<workload>:<fault>`
the ranks and the saving that was measured with and without the fault. JOB.py is the source of the jobs: a planted line
is found in it by its text, for this comparison alone.
"""

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepscope

FIRST = 2
CLOSE = 10.0
"""percent of the step"""
PLANTED: dict[str, tuple[Any, ...]] = {
    "conv:fp32": ("with amp(half)",),
    "conv:epochs": ("in next(data)", "yield from loader"),
    "small:ema_loop": ("e.mul_(0.999)",),
    "lstm:cell_loop": ("h = rnn(e[t], h)",),
    "lm:tokenise": ('fault == "tokenise"',),
    "lm:grads_to_cpu": ('fault == "grads_to_cpu"',),
    "lm:metric_forward": ("torch.no_grad(), amp()",),
    "lm:save": ('fault == "save" and',),
    "ddp:two_late": ('fault == "two_late"',),
    "ddp:weights_sent": ("dist.broadcast(p.data",),
    "ddp:save0": ('fault == "save0"',),
    "convd:syncbn": ("module", r"(^|\.)[cd]\.[147]$|^1$"),
    "fsdp:sync_each": ("after", "net.set_requires_gradient_sync", 2),
    "pipe:heavy_first": ("module", r"^[0-6]$"),
}
"""text of the planted line, the modules that the fault put in, or the line that the missing one acts on"""


@dataclass
class Row:
    """One fault: what was planted, what was said, what was true."""

    fault: str
    planted: str
    said: list[str]
    named: bool
    saving_pct: float | None
    truth_pct: float


def main(argv: list[str]) -> int:
    """Print the table; return 0 always: it reports."""
    runs, truth, source = Path(argv[0]), json.loads(Path(argv[1]).read_text()), Path(argv[2]).read_text().splitlines()
    rows = []
    for fault, known in truth.items():
        folder = runs / fault.replace(":", "_")
        if folder.is_dir():
            rows.append(row_of(fault, known, stepscope.load(folder).findings, source))
            print_row(rows[-1])
    named = sum(row.named for row in rows)
    errors = [abs((row.saving_pct or 0.0) - row.truth_pct) for row in rows]
    print(f"\nnamed in the first {FIRST}: {named} of {len(rows)}")
    print(f"saving within {CLOSE:.0f} % of the step: {sum(e <= CLOSE for e in errors)} of {len(rows)}")
    print(f"mean error: {sum(errors) / max(len(errors), 1):.1f} % of the step")
    return 0


def row_of(fault: str, known: dict, findings: tuple, source: list[str]) -> Row:
    """Return how the first findings hold against what was planted."""
    lines, modules = planted(fault, source)
    said = [f for f in findings if f.alone_ns > 0][:FIRST]
    hits = [f for f in said if is_named(f, lines, modules, source) and set(known["ranks"] or ()) == set(f.ranks)]
    ours = hits[0] if hits else next((f for f in said if f.id == known["finding"]), None)
    texts = []
    for f in said:
        place = f.where[0].text if f.where else "nowhere"
        ranks = f" ranks {','.join(map(str, f.ranks))}" if f.ranks else ""
        texts.append(f"{f.id}{ranks} {place} {f.saving_pct:.1f} %")
    where = modules or "/".join(map(str, lines))
    return Row(fault, where, texts, bool(hits), ours.saving_pct if ours else None, known["saving_pct"])


def planted(fault: str, source: list[str]) -> tuple[list[int], str | None]:
    """Return the numbers of the planted lines, or the pattern of the planted modules."""
    given = PLANTED[fault]
    if given[0] == "module":
        return [], given[1]
    if given[0] == "after":
        return [i + given[2] for i, text in enumerate(source, 1) if given[1] in text], None
    found = [i for i, text in enumerate(source, 1) if any(part in text for part in given)]
    return found, None


def is_named(finding, lines: list[int], modules: str | None, source: list[str]) -> bool:
    """Return whether a finding's places are the planted ones; a line never seen at work is the one after."""
    for place in finding.where:
        if modules and place.module and re.search(modules, place.module):
            return True
        if place.line is None:
            continue
        if place.line in lines or (place.after and place.line + 1 in lines):
            return True
    return False


def print_row(row: Row) -> None:
    """Print one row of the table."""
    saving = "-" if row.saving_pct is None else f"{row.saving_pct:.1f}"
    close = row.saving_pct is not None and abs(row.saving_pct - row.truth_pct) <= CLOSE
    print(
        f"| {row.fault} | {row.planted} | {' | '.join(row.said + [''] * (FIRST - len(row.said)))} | {saving} | "
        f"{row.truth_pct:.1f} | {'yes' if row.named else 'NO'} | {'yes' if close else 'NO'} |",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
