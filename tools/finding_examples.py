"""Refresh the examples on the pages of docs/findings from recorded runs.

    python tools/finding_examples.py RUNS

RUNS holds a folder per run that the pages name, each with its traces and a `truth.json` that gives the step without
the profiler (`step_ms_unprofiled`). The block of each finding is written anew; the words around it stay.
"""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "findings"
_SAID = re.compile(r"(`(?P<run>\w+)`: [^\n]*\n\n)(?P<block>(?:    [^\n]*\n)+)")


def main(runs: Path) -> int:
    """Return 0 when all pages have been looked at."""
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        fresh = refreshed(text, page.stem, runs)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
            print(f"{page.name}: new numbers")
    return 0


def refreshed(text: str, finding_id: str, runs: Path) -> str:
    """Return a page with its blocks written anew."""
    return _SAID.sub(lambda m: m[1] + said(runs / m["run"], finding_id, m["block"]), text)


def said(run: Path, finding_id: str, before: str) -> str:
    """Return what the finding of a run says; as before where the run is not there or does not have it."""
    if not run.is_dir():
        return before
    found = next((f for f in report(run)["findings"] if f["id"] == finding_id), None)
    if found is None:
        print(f"{finding_id}: not found in {run.name}")
        return before
    saving = f"{found['saving_alone_ms']:.1f} ms per step"
    between = f"{found['saving_pct']:.0f} %; {found['saving_low_ms']:.1f} to {found['saving_high_ms']:.1f} ms"
    lines = [found["title"], f"saves {saving} ({between})"]
    lines += [evidence(e) for e in found["evidence"]]
    return "".join(f"    {line}\n" for line in lines)


def evidence(e: dict[str, Any]) -> str:
    """Return one line of evidence."""
    value = f"{e['value']:,}" if isinstance(e["value"], int) else str(e["value"])
    where = f" ({e['where']})" if e["where"] else ""
    return f"{e['what']}: {value} {e['unit']}".rstrip() + where


@cache
def report(run: Path) -> dict[str, Any]:
    """Return the report of a run."""
    command = ["stepscope", "report", str(run), "--json", "-", "--unprofiled-step-ms", str(unprofiled_ms(run))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def unprofiled_ms(run: Path) -> float:
    """Return the step without the profiler."""
    return float(json.loads((run / "truth.json").read_text())["step_ms_unprofiled"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
