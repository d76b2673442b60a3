"""What stepscope, HTA and TraceLens say of other people's traces, as the table in docs/peers.md.

    python benchmarks/foreign.py TRACE ... [--peers PYTHON] [--write docs/peers.md]

Each tool reads each trace (a file, or a folder of one trace per rank) in a process of its own. The peers give no
verdict and no finding: of theirs the table has steps, busy and idle time, or why they stop. `--write` replaces what
lies between the two markers in the page.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- foreign traces: begin -->", "<!-- foreign traces: end -->"
_PEER_TIMEOUT_S = 300
_LONGEST = 60

_HTA = """
import sys, json, logging, warnings
logging.disable(logging.CRITICAL); warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
files = dict(enumerate(sys.argv[1:]))
analysis = TraceAnalysis(trace_files=files, trace_dir="/", include_last_profiler_step=True)
row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
steps = len(analysis.t.get_iterations()) if hasattr(analysis, "t") else None
print(json.dumps({"steps": steps, "window": row["kernel_time(us)"] / 1e3, "compute": row["compute_time(us)"] / 1e3,
                  "idle": row["idle_time(us)"] / 1e3}))
"""
_TRACELENS = """
import sys, json, logging, warnings
logging.disable(logging.CRITICAL); warnings.simplefilter("ignore")
from TraceLens import TreePerfAnalyzer
frame = TreePerfAnalyzer.from_file(sys.argv[1]).get_df_gpu_timeline()
of = dict(zip(frame["type"], frame["time ms"]))
print(json.dumps({"window": of["total_time"], "compute": of["computation_time"], "idle": of["idle_time"]}))
"""


def main() -> int:
    arguments = parsed()
    rows = [row_of(Path(trace), arguments.peers) for trace in arguments.traces]
    if arguments.write and not arguments.peers:
        rows = _with_peers_as_written(rows, Path(arguments.write))
    table = "\n".join([_line(HEAD), _line(["---"] * len(HEAD)), *map(_line, rows)])
    if arguments.write:
        page = Path(arguments.write)
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")
    print(table)
    return 0


def _with_peers_as_written(rows: list[list[str]], page: Path) -> list[list[str]]:
    """Return our columns with what the page says of the peers, whose answers do not change with our code."""
    lines = [line.strip("| ").split(" | ") for line in page.read_text(encoding="utf-8").splitlines() if "/" in line]
    said = {cells[0]: cells[-2:] for cells in lines if len(cells) == len(HEAD)}
    return [[*row[:-2], *said.get(row[0], row[-2:])] for row in rows]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("traces", nargs="+", help="traces, or folders with one trace per rank")
    parser.add_argument(
        "--peers", metavar="PYTHON", help="interpreter with HTA and TraceLens; without one their columns stay"
    )
    parser.add_argument("--write", metavar="PAGE", help="page whose table is replaced")
    return parser.parse_args()


HEAD = ("trace", "device", "steps", "verdict", "first finding", "window, compute, idle ms", "HTA", "TraceLens")


def row_of(trace: Path, peers: str | None) -> list[str]:
    """Return one line of the table."""
    files = [str(trace)]
    if trace.is_dir():
        files = sorted(str(p) for p in trace.iterdir() if p.name.endswith((".json", ".json.gz")))
    ours = _ours(trace)
    said = [_peer(peers, code, files) for code in (_HTA, _TRACELENS)] if peers else ["-", "-"]
    return [f"{trace.parent.name}/{trace.name.partition('.')[0]}", *ours, *said]


def _ours(trace: Path) -> list[str]:
    command = [sys.executable, "-m", "stepscope", "report", str(trace), "--json", "-", "--no-cache"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        return ["-", "-", f"refused: {_short(done.stderr)}", "-", "-"]
    found = json.loads(done.stdout)
    first = next((f for f in found["findings"] if (f["saving_alone_ms"] or 0) > 0), None)
    finding = (
        "none" if first is None else f"{first['id']}, {first['saving_alone_ms']:.1f} ms ({first['saving_pct']:.0f} %)"
    )
    steps = str(found["run"]["num_steps"])
    if found.get("serving"):
        steps += " " + ", ".join(kind["kind"] for kind in found["serving"]["kinds"])
    return [str(found["run"]["device"]), steps, str(found["verdict"]), finding, _times(_own_times(found["ranks"][0]))]


def _own_times(rank: dict[str, Any]) -> dict[str, Any]:
    return {"window": rank["window_ms"], "compute": rank["compute_ms"], "idle": rank["idle_ms"]}


def _peer(python: str | None, code: str, files: list[str]) -> str:
    command = [str(python), "-c", code, *files]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PEER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no answer in {_PEER_TIMEOUT_S} s"
    if done.returncode:
        return f"fails: {_short(done.stderr)}"
    found = json.loads(done.stdout.splitlines()[-1])
    steps = f"{found['steps']} steps; " if found.get("steps") is not None else ""
    return steps + _times(found)


def _times(found: dict[str, Any]) -> str:
    return ", ".join("?" if found[k] is None else f"{found[k]:.1f}" for k in ("window", "compute", "idle"))


def _short(text: str) -> str:
    last = (text.strip().splitlines() or ["no message"])[-1].replace("|", "/")
    return last if len(last) <= _LONGEST else last[: _LONGEST - 3] + "..."


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
