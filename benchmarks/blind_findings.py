"""Does stepscope find what was planted? Compare the findings of each recorded run with truth.json of blind_truth.py.

    python benchmarks/blind_findings.py RUNS [--findings 2] [--json PATH]

RUNS holds truth.json and a recording per fault, or the archives runs-*.tar.gz with them. A finding names the fault
by its `line` (a planted line), by a line `inside` a function that the planted lines call, where it is `felt` (a line
marked as paying for it), or only by the `function` around a planted line. "Leading" says that this is the first place
which the finding names: later ones take a smaller share.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import stepscope
from stepscope.errors import StepscopeError

HITS = ("line", "inside", "felt", "function")


@dataclass(frozen=True)
class NamedFinding:
    """One finding beside the truth."""

    id: str
    title: str
    places: tuple[str, ...]
    ranks: tuple[int, ...]
    saving_ms: float
    saving_pct: float
    hit: str | None
    leads: bool


@dataclass(frozen=True)
class JudgedSetting:
    """What the first findings say of a run, and what is true."""

    fault: str
    step_ms: float
    findings: tuple[NamedFinding, ...]
    real_ms: float | None
    real_pct: float | None
    spread_ms: float | None
    hit: str | None
    error_pct: float | None


def hit_of(file: str | None, line: int | None, truth: dict[str, Any]) -> str | None:
    """Return how closely a place names the fault."""
    if line is None or Path(file or "").name != truth["planted"][0]["file"]:
        return None
    spans = {
        "line": [(p["first"], p["last"]) for p in truth["planted"]],
        "inside": [(c["first"], c["last"]) for c in truth["calls"]],
        "felt": [(p["first"], p["last"]) for p in truth["felt"]],
        "function": [tuple(p["function_lines"]) for p in truth["planted"] if p["function_lines"]],
    }
    return next((hit for hit in HITS if any(a <= line <= b for a, b in spans[hit])), None)


def closest(hits: list[str | None]) -> str | None:
    return next((hit for hit in HITS if hit in hits), None)


def judged(fault: str, folder: Path, truth: dict[str, Any], count: int) -> JudgedSetting:
    """Load a run and set its first findings beside the truth."""
    run = stepscope.load(folder)
    step = run.document["step"]
    step_ms = step["unprofiled_ms"] or step["profiled_ms"]
    named = []
    for finding in run.findings[:count]:
        hits = [hit_of(place.file, place.line, truth) for place in finding.where]
        places = tuple(f"{place.file}:{place.line}" if place.line else str(place.module) for place in finding.where)
        saving_ms = finding.alone_ns / 1e6
        named.append(
            NamedFinding(
                id=finding.id,
                title=finding.title,
                places=places,
                ranks=tuple(finding.ranks),
                saving_ms=saving_ms,
                saving_pct=100 * saving_ms / step_ms,
                hit=closest(hits),
                leads=bool(hits) and hits[0] is not None and hits[0] == closest(hits),
            )
        )
    hit = closest([n.hit for n in named])
    real_pct = truth["cost_pct"]
    said = next((n for n in named if n.hit == hit), None) if hit else (named[0] if named else None)
    error = None if real_pct is None else (said.saving_pct if said else 0.0) - real_pct
    return JudgedSetting(
        fault, step_ms, tuple(named), truth["cost_ms"], real_pct, truth["spread_ms"], hit=hit, error_pct=error
    )


def shown(row: JudgedSetting, truth: dict[str, Any]) -> str:
    """Return the lines about one fault."""
    planted = ", ".join(f"{p['first']}-{p['last']} ({p['function']})" for p in truth["planted"])
    felt = ", ".join(str(p["first"]) for p in truth["felt"]) or "-"
    ranks = "all ranks" if truth["ranks"] == "all" else f"rank {', '.join(map(str, truth['ranks']))}"
    real = "not measured" if row.real_ms is None else f"{row.real_ms:.2f} ms = {row.real_pct:.1f} %"
    spread = "" if row.spread_ms is None else f", two measurements {row.spread_ms:.2f} ms apart"
    lines = [f"{row.fault}  step {row.step_ms:.2f} ms, planted at {planted}, felt at {felt}, {ranks}"]
    for i, n in enumerate(row.findings, 1):
        where = ", ".join(n.places) or "no line"
        how = "not the fault" if n.hit is None else f"{n.hit}, leading" if n.leads else f"{n.hit}, not leading"
        on = f" [rank {', '.join(map(str, n.ranks))}]" if n.ranks else ""
        lines.append(f"  {i}. {n.id}{on}: {n.title}")
        lines.append(f"     saves {n.saving_ms:.2f} ms = {n.saving_pct:.1f} %, at {where}: {how}")
    if not row.findings:
        lines.append("  no finding")
    error = "" if row.error_pct is None else f"; error of the saving {row.error_pct:+.1f} % of the step"
    return "\n".join([*lines, f"  really saves {real}{spread}; named by: {row.hit or 'nothing'}{error}"])


def unpacked(runs: Path, scratch: Path) -> Path:
    """Return the folder of the recordings, taken out of their archives where there are any."""
    archives = sorted(runs.glob("runs-*.tar.gz"))
    for path in archives:
        with tarfile.open(path) as archive:
            archive.extractall(scratch, filter="data")
    return scratch if archives else runs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--findings", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    truths = json.loads((args.runs / "truth.json").read_text())["faults"]
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = unpacked(args.runs, Path(scratch))
        for fault, truth in truths.items():
            if not (folder / fault).is_dir():
                print(f"{fault}  not recorded\n", flush=True)
                continue
            try:
                row = judged(fault, folder / fault, truth, args.findings)
            except StepscopeError as error:
                print(f"{fault}  {error}\n", flush=True)
                continue
            rows.append(row)
            print(shown(row, truth), end="\n\n", flush=True)
    for hit in (*HITS, None):
        names = [row.fault for row in rows if row.hit == hit]
        print(f"{hit or 'not named':10} {len(names):2} of {len(rows)}  {', '.join(names)}")
    leading = [
        row.fault for row in rows if row.hit in HITS[:3] and any(n.hit == row.hit and n.leads for n in row.findings)
    ]
    print(f"leading    {len(leading):2} of {len(rows)}  {', '.join(leading)} (line, inside or felt)")
    errors = sorted(abs(row.error_pct) for row in rows if row.error_pct is not None and row.hit)
    if errors:
        middle = statistics.median(errors)
        print(f"error of the saving where named: median {middle:.1f}, worst {errors[-1]:.1f} % of the step")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
