"""How fast are we beside HTA and TraceLens? Reading, first account, whole report, second report, memory, many ranks.

    python benchmarks/peers.py [--rounds 5] [--ranks 4 8 9 64] [--write docs/peers.md]

`peers.py` without runs comes here. The inputs are made (`big_trace.py`, `analysis.py`), the peers are installed by pip
into an environment of their own unless `--peers` names one. Every measurement is a process of its own; rounds alternate
the tools, and the median of each counts. CPU time begins after the imports, except for the command line, where it is
that of the whole process. Peers get the runs up to `--peer-ranks` ranks: they need several times the files in memory.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
PEER_PACKAGES = ("traceinsight", "git+https://github.com/AMD-AGI/TraceLens@171dd747")
STEPS_OF_ONE = 8
"""marked in the trace of a rank: HTA slows down with their number"""
BYTES_PER_EVENT = 300
COMMAND = "stepscope report, command line"
OURS = ("reading", "first account", "whole report", "second report", COMMAND, f"{COMMAND}, again")
HTA, TRACELENS = "HTA: parse and four breakdowns", "TraceLens: tree, kernels, collectives"
Row = dict[str, Any]


def speed_table(arguments: argparse.Namespace) -> str:
    """Return the whole table as Markdown, after measuring it."""
    import compileall  # what is measured in a process of its own is not burdened with this

    from peer_environment import peer_python

    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installed package is
    python = arguments.peers or str(peer_python(arguments.folder / "both-peers", PEER_PACKAGES))
    rows = []
    for name, files, ranks in inputs(arguments):
        tools = [*OURS, *((HTA, TRACELENS) if ranks <= arguments.peer_ranks else ())]
        rows.append((name, files, medians(tools, files, python, arguments.rounds)))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps([[name, found] for name, _, found in rows], indent=1))
    return table(rows)


def write(page: Path, text: str) -> None:
    """Put the table between its marks on a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def inputs(arguments: argparse.Namespace) -> list[tuple[str, list[str], int]]:
    """Return name, files and number of ranks of each run, made unless they are there already."""
    from analysis import SAMPLE, large_run
    from big_trace import big_trace, gzipped

    made = []
    for packed in (True, False):
        one = big_trace(arguments.folder, arguments.megabytes, compressed=packed, max_steps=STEPS_OF_ONE)
        made.append((f"1 rank, {arguments.megabytes} MB{', gzip' if packed else ''}", [str(one)], 1))
    for ranks in arguments.large_ranks:
        events = arguments.megabytes * 1_000_000 // BYTES_PER_EVENT
        given = argparse.Namespace(sample=arguments.sample or SAMPLE, ranks=ranks, events=events)
        folder = large_run(arguments.folder, given, max_steps=STEPS_OF_ONE)
        files = [str(gzipped(path)) for path in sorted(folder.glob("*.json"))]
        made.append((f"{ranks} ranks of {arguments.megabytes} MB, gzip", files, ranks))
    for ranks in arguments.ranks:
        given = argparse.Namespace(sample=arguments.sample or SAMPLE, ranks=ranks, events=arguments.events)
        files = sorted(str(path) for path in large_run(arguments.folder, given).glob("*.json"))
        made.append((f"{ranks} ranks x {arguments.events:,} events", files, ranks))
    return made


# Measuring ----------------------------------------------------------------------------------------------------------


def medians(tools: list[str], files: list[str], python: str, rounds: int) -> dict[str, Row]:
    """Return per tool the median of its rounds, or why it failed."""
    found: dict[str, list[Row]] = {tool: [] for tool in tools}
    for _ in range(rounds):
        cache = tempfile.mkdtemp()
        try:
            for tool in tools:
                mine = python if tool in (HTA, TRACELENS) else sys.executable
                found[tool].append(in_own_process(mine, tool, cache, files))
        finally:
            shutil.rmtree(cache)
    return {tool: _median(rows) for tool, rows in found.items()}


def _median(rows: list[Row]) -> Row:
    import statistics

    failed = next((row for row in rows if "failed" in row), None)
    return failed or {key: statistics.median(row[key] for row in rows) for key in rows[0]}


def in_own_process(python: str, tool: str, cache: str, files: list[str]) -> Row:
    if tool.startswith(COMMAND):
        return _command_line(cache, files)
    command = [python, str(Path(__file__)), tool, cache, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _command_line(cache: str, files: list[str]) -> Row:
    """Return what the command costs with everything: interpreter, imports, reading, printing."""
    from peak_memory import mb

    folder = str(Path(cache) / "command")
    words = [sys.executable, "-m", "stepscope", "report", *files, "--json", "-", "--cache-folder", folder]
    code = (
        "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss]))"
    )
    wall = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment)
    returncode, cpu, peak_kb = json.loads(done.stdout)
    if returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return {"cpu_s": cpu, "wall_s": time.perf_counter() - wall, "peak_mb": mb(peak_kb)}


def measured(tool: str, cache: str, files: list[str]) -> Row:
    """Return what one tool costs, in this process, from after its imports."""
    import contextlib
    import gc
    import logging
    import warnings

    from peak_memory import mb, own_peak_mb

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        run = TOOLS[tool](cache)
        gc.freeze()  # what is imported is no garbage: as our command does it, for all
        cpu, wall = time.process_time(), time.perf_counter()
        run(files)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    started = resource.getrusage(resource.RUSAGE_CHILDREN)  # HTA reads files in processes of its own
    peak_mb = own_peak_mb() + mb(started.ru_maxrss)
    return {"cpu_s": cpu + started.ru_utime + started.ru_stime, "wall_s": wall, "peak_mb": peak_mb}


# Tools --------------------------------------------------------------------------------------------------------------

Task = Callable[[list[str]], object]


def reading(_: str) -> Task:
    from stepscope.run.load import load

    return lambda files: load(files, cache=False)


def first_account(_: str) -> Task:
    from stepscope.analyze.ranks.overlap import rank_overlap
    from stepscope.analyze.ranks.window import rank_account
    from stepscope.run.load import load

    return lambda files: [(rank_account(r), rank_overlap(r)) for r in load(files, cache=False).ranks]


def whole_report(cache: str) -> Task:
    """Return the whole report from a cache; the first to come fills it."""
    from stepscope.analyze.account import account_of
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json
    from stepscope.later_writes import begin, wait_for_all, write_later
    from stepscope.run.load import load_sources, run_name
    from stepscope.run.sources import find_sources
    from stepscope.trace.freed_memory import keep_freed

    def run(files: list[str]) -> str:  # as the command does
        keep_freed()
        name, folder = run_name(files, None), Path(cache)
        account = account_of(load_sources(find_sources(files), name=name, cache_folder=folder, write_later=write_later))
        begin()
        text = json.dumps(report_json(account, diagnose(account)))
        wait_for_all()
        return text

    return run


def hta(_: str) -> Task:
    from hta.trace_analysis import TraceAnalysis

    def run(files: list[str]) -> None:
        analysis = TraceAnalysis(trace_files=dict(enumerate(files)), trace_dir="/", include_last_profiler_step=True)
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_idle_time_breakdown(ranks=list(range(len(files))), visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)

    return run


def tracelens(_: str) -> Task:
    from peers import tracelens as tool

    return tool()


TOOLS: dict[str, Callable[[str], Task]] = {
    "reading": reading,
    "first account": first_account,
    "whole report": whole_report,
    "second report": whole_report,
    HTA: hta,
    TRACELENS: tracelens,
}


# Table --------------------------------------------------------------------------------------------------------------


def table(rows: list[tuple[str, list[str], dict[str, Row]]]) -> str:
    """Return costs by run and tool, and how many times less each of ours takes than each peer."""
    names = ("run", "what", "CPU s", "wall s", "peak MB", "HTA CPU", "HTA wall", "TraceLens CPU", "TraceLens wall")
    lines = [_line(names), _line(["---"] * len(names))]
    for name, files, found in rows:
        size = f"{sum(Path(f).stat().st_size for f in files) / 1e6:.0f} MB on disk"
        for tool, row in found.items():
            head = [f"{name}, {size}" if tool == next(iter(found)) else "", tool]
            if "failed" in row:
                lines.append(_line([*head, f"failed: {row['failed'][:60]}", *[""] * 6]))
                continue
            cost = [f"{row['cpu_s']:.2f}", f"{row['wall_s']:.1f}", f"{row['peak_mb']:.0f}"]
            lines.append(_line([*head, *cost, *_times(tool, row, found)]))
    return "\n".join(lines)


def _times(tool: str, row: Row, found: dict[str, Row]) -> list[str]:
    """Return how many times a peer's time this is, for what is ours."""
    cells = []
    for peer in (HTA, TRACELENS):
        theirs = found.get(peer, {})
        for key in ("cpu_s", "wall_s"):
            known = tool not in (HTA, TRACELENS) and key in theirs
            cells.append(f"{theirs[key] / row[key]:.1f}x" if known else "")
    return cells


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
    print(json.dumps(measured(sys.argv[1], sys.argv[2], sys.argv[3:])))
