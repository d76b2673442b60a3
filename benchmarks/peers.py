"""The same runs through stepscope, HTA and TraceLens: time, memory, agreement of the numbers, and the late rank.

    python benchmarks/peers.py speed [--rounds 5] [--write PAGE]
    python benchmarks/peers.py compare RUN ... [--rounds 2] [--shift-rank 1] [--shift-ms 20] [--out peers.json]
    python benchmarks/peers.py foreign TRACE ... [--write PAGE]

The peers run in an environment of their own, installed by pip unless `--peers` names its interpreter. Every measurement
is a separate process, rounds alternate the tools. CPU time begins after the imports, except for the command line, and
includes child processes.

speed      reading, first account, whole report, cached report and memory, on repeated real events (`large_runs.py`);
           median of the rounds. Peers get up to `--peer-ranks` ranks: they need several times the files in memory
compare    the features that all three have, on given runs: cost (least CPU time), numbers, late rank; then one rank's
           clock is shifted and all three are queried again
foreign    traces of other people, a row each; without `--peers` the page's cells for the peers stay
"""

import argparse
import contextlib
import gc
import gzip
import json
import logging
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import ROOT, SCRATCH, STEPSCOPE, environment, mb, own_peak_mb, peer_python, table, write_between
from large_runs import FOUR_RANKS, ONE_RANK, gzipped, large_run

PEER_PACKAGES = ("traceinsight", "git+https://github.com/AMD-AGI/TraceLens@171dd747")
OURS, PEERS = ("stepscope", "stepscope report"), ("HTA", "TraceLens")
STEPS_OF_ONE = 8
"""marked in the trace of a rank: HTA slows down with their number"""
BYTES_PER_EVENT = 300
COMMAND = "stepscope report, command line"
HTA, TRACELENS = "HTA: parse and four breakdowns", "TraceLens: tree, kernels, collectives"
OF_SPEED = ("reading", "first account", "whole report", "second report", COMMAND, f"{COMMAND}, again", HTA, TRACELENS)
FOREIGN = ("trace", "device", "steps", "verdict", "first finding", "window, compute, idle ms", *PEERS)
LONGEST_MESSAGE = 60
Result = dict[str, Any]
Tool = Callable[[list[str]], Result]


def main() -> int:
    args = parsed()
    if args.what == "measure":
        print(json.dumps(measured(args.tool, args.cache, args.runs)))
        return 0
    if args.what == "speed":
        show(speed_table(args), args, "speed")
    elif args.what == "foreign":
        show(foreign_table(args), args, "foreign traces")
    else:
        results = [case_result(Path(run), args) for run in args.runs]
        for text in (cost_table, agreement_table, blame_table):
            print(text(results), end="\n\n")
        if args.out:
            Path(args.out).write_text(json.dumps(results, indent=1))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("speed", "compare", "foreign", "measure"))
    parser.add_argument("runs", nargs="*", help="folders with one trace per rank, or traces")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with HTA and TraceLens")
    parser.add_argument("--no-peers", action="store_true", help="measure stepscope alone")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--write", metavar="PAGE", help="page with the table to replace")
    parser.add_argument("--out")
    parser.add_argument("--shift-rank", type=int, default=1)
    parser.add_argument("--shift-ms", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=100, help="of the trace of one rank")
    parser.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 9, 64])
    parser.add_argument("--large-ranks", type=int, nargs="*", default=[4], help="ranks of so many megabytes each")
    parser.add_argument("--events", type=int, default=100_000, help="of each of several ranks")
    parser.add_argument("--sample", type=Path, default=FOUR_RANKS, help="run with the events to repeat")
    parser.add_argument("--peer-ranks", type=int, default=8, help="largest number of ranks that the peers get")
    parser.add_argument("--folder", type=Path, default=SCRATCH)
    parser.add_argument("--tool", help=argparse.SUPPRESS)
    parser.add_argument("--cache", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def show(text: str, args: argparse.Namespace, mark: str) -> None:
    print(text)
    if args.write:
        write_between(Path(args.write), mark, text)


def in_own_process(tool: str, files: list[str], args: argparse.Namespace, cache: str = "") -> Result:
    if tool.startswith(COMMAND):
        return command_line(cache, files)
    ours = tool in (*OURS, *OF_SPEED[:4])
    interpreter = sys.executable if ours else args.peers or str(peer_python(args.folder / "peers", PEER_PACKAGES))
    command = [interpreter, __file__, "measure", *files, "--tool", tool, "--cache", cache]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": short(done.stderr)}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(tool: str, cache: str, files: list[str]) -> Result:
    """Return the answer of a tool and its cost, in this process, from after its imports."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        run = TOOLS[tool](cache)
        gc.freeze()  # imports are no garbage: as our command does it, for all
        cpu, wall = time.process_time(), time.perf_counter()
        found = run(files)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    started = resource.getrusage(resource.RUSAGE_CHILDREN)  # HTA reads files in child processes
    peak_mb = own_peak_mb() + mb(started.ru_maxrss)
    return {**found, "cpu_s": cpu + started.ru_utime + started.ru_stime, "wall_s": wall, "peak_mb": peak_mb}


def short(text: str) -> str:
    last = (text.strip().splitlines() or ["no message"])[-1].replace("|", "/")
    return last if len(last) <= LONGEST_MESSAGE else last[: LONGEST_MESSAGE - 3] + "..."


def traces_of(run: Path) -> list[str]:
    if run.is_file():
        return [str(run)]
    return sorted(str(p) for p in run.iterdir() if p.name.endswith((".json", ".json.gz")) and p.name != "truth.json")


# Speed


def speed_table(args: argparse.Namespace) -> str:
    import compileall

    compileall.compile_dir(ROOT / "src", quiet=1)  # as an installed package is
    rows, found_all = [], []
    for name, files, ranks in inputs(args):
        tools = OF_SPEED if ranks <= args.peer_ranks and not args.no_peers else OF_SPEED[:-2]
        found = medians(tools, files, args)
        found_all.append([name, found])
        size = f"{sum(Path(f).stat().st_size for f in files) / 1e6:.0f} MB on disk"
        for tool, row in found.items():
            start = [f"{name}, {size}" if tool == tools[0] else "", tool]
            if "failed" in row:
                rows.append([*start, f"failed: {row['failed']}", *[""] * 6])
                continue
            cost = [f"{row['cpu_s']:.2f}", f"{row['wall_s']:.1f}", f"{row['peak_mb']:.0f}"]
            times = [
                f"{found[peer][key] / row[key]:.1f}x" if tool not in tools[6:] and key in found.get(peer, {}) else ""
                for peer in (HTA, TRACELENS)
                for key in ("cpu_s", "wall_s")
            ]
            rows.append([*start, *cost, *times])
    if args.out:
        Path(args.out).write_text(json.dumps(found_all, indent=1))
    head = ("run", "what", "CPU s", "wall s", "peak MB", "HTA CPU", "HTA wall", "TraceLens CPU", "TraceLens wall")
    return table(head, rows)


def inputs(args: argparse.Namespace) -> list[tuple[str, list[str], int]]:
    """Return name, files and number of ranks of each run."""
    events = args.megabytes * 1_000_000 // BYTES_PER_EVENT
    one = large_run(args.folder, ranks=1, events=events, sample=ONE_RANK, max_steps=STEPS_OF_ONE) / "rank0.json"
    name = f"1 rank, {args.megabytes} MB"
    made = [(f"{name}, gzip", [str(gzipped(one))], 1), (name, [str(one)], 1)]
    for ranks in args.large_ranks:
        run = large_run(args.folder, ranks=ranks, events=events, sample=args.sample, max_steps=STEPS_OF_ONE)
        files = [str(gzipped(path)) for path in sorted(run.glob("*.json"))]
        made.append((f"{ranks} ranks of {args.megabytes} MB, gzip", files, ranks))
    for ranks in args.ranks:
        run = large_run(args.folder, ranks=ranks, events=args.events, sample=args.sample)
        made.append((f"{ranks} ranks x {args.events:,} events", traces_of(run), ranks))
    return made


def medians(tools: tuple[str, ...], files: list[str], args: argparse.Namespace) -> dict[str, Result]:
    """Return per tool the median of its rounds, or why it failed."""
    found: dict[str, list[Result]] = {tool: [] for tool in tools}
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for tool in tools:
                found[tool].append(in_own_process(tool, files, args, cache))
    return {
        tool: next((row for row in rows if "failed" in row), {})
        or {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for tool, rows in found.items()
    }


def command_line(cache: str, files: list[str]) -> Result:
    """Return the cost of the whole command: interpreter, imports, reading, printing."""
    words = [*STEPSCOPE, "report", *files, "--json", "-", "--cache-folder", str(Path(cache) / "command")]
    code = (
        "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(json.dumps([done.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss]))"
    )
    wall = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, env=environment())
    returncode, cpu, peak_kb = json.loads(done.stdout)
    if returncode:
        return {"failed": short(done.stderr)}
    return {"cpu_s": cpu, "wall_s": time.perf_counter() - wall, "peak_mb": mb(peak_kb)}


# Other people's traces


def foreign_table(args: argparse.Namespace) -> str:
    rows = [foreign_row(Path(trace), args) for trace in args.runs]
    if args.write and not args.peers:  # the peers' answers do not change with our code
        lines = [line.strip("| ").split(" | ") for line in Path(args.write).read_text(encoding="utf-8").splitlines()]
        known = {cells[0]: cells[-2:] for cells in lines if len(cells) == len(FOREIGN)}
        rows = [[*row[:-2], *known.get(row[0], row[-2:])] for row in rows]
    return table(FOREIGN, rows)


def foreign_row(trace: Path, args: argparse.Namespace) -> list[str]:
    name = f"{trace.parent.name}/{trace.name.partition('.')[0]}"
    command = [*STEPSCOPE, "report", str(trace), "--json", "-", "--no-cache"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 3):
        return [name, "-", "-", f"refused: {short(done.stderr)}", "-", "-", "-", "-"]
    report = json.loads(done.stdout)
    first = next((f for f in report["findings"] if (f["saving_alone_ms"] or 0) > 0), None)
    text = f"{first['id']}, {first['saving_alone_ms']:.1f} ms ({first['saving_pct']:.0f} %)" if first else "none"
    steps = str(report["run"]["num_steps"])
    if report.get("serving"):
        steps += " " + ", ".join(kind["kind"] for kind in report["serving"]["kinds"])
    rank = report["ranks"][0]
    times = ", ".join("?" if rank[k] is None else f"{rank[k]:.1f}" for k in ("window_ms", "compute_ms", "idle_ms"))
    ours = [str(report["run"]["device"]), steps, str(report["verdict"]), text, times]
    return [name, *ours, *(peer_cell(tool, traces_of(trace), args) if args.peers else "-" for tool in PEERS)]


def peer_cell(tool: str, files: list[str], args: argparse.Namespace) -> str:
    found = in_own_process(tool, files, args)
    if "failed" in found:
        return f"fails: {found['failed']}"
    return ", ".join(f"{found['ranks'][0][key]:.1f}" for key in ("window", "compute", "idle"))


# The same run through all three


def case_result(run: Path, args: argparse.Namespace) -> Result:
    """Return what every tool reports of one run, and of the same run with one rank shifted."""
    files, peers = traces_of(run), () if args.no_peers else PEERS
    best: dict[str, Result] = {}
    for _ in range(args.rounds):
        for tool in (*OURS, *peers):
            found = in_own_process(tool, files, args)
            if tool not in best or found.get("cpu_s", 0) < best[tool].get("cpu_s", 0):
                best[tool] = found
    with tempfile.TemporaryDirectory() as folder:
        moved = shifted(files, Path(folder), rank=args.shift_rank, by_us=1000 * args.shift_ms)
        after = {tool: in_own_process(tool, moved, args).get("late_rank") for tool in (OURS[0], *peers)}
    size_mb = sum(Path(f).stat().st_size for f in files) / 1e6
    return {"run": run.name, "size_mb": size_mb, "tools": best, "late_after_shift": after, "truth": slow_ranks(run)}


def shifted(files: list[str], folder: Path, *, rank: int, by_us: int) -> list[str]:
    """Return the files with the clock of one of them moved; times are edited as text, so that no digit is lost."""

    def later(found: re.Match[str]) -> str:
        whole, _, part = found[2].partition(".")
        return f"{found[1]}{int(whole) + by_us}{'.' + part if part else ''}"

    out = []
    for index, file in enumerate(files):
        content = Path(file).read_bytes()
        content = gzip.decompress(content) if file.endswith(".gz") else content
        text = content.decode(errors="surrogateescape")
        if index == rank:
            text = re.sub(r'("ts":\s*)(\d+(?:\.\d+)?)', later, text)
        target = folder / (Path(file).name.removesuffix(".gz") + ".gz")
        target.write_bytes(gzip.compress(text.encode(errors="surrogateescape"), 1))
        out.append(str(target))
    return out


def slow_ranks(run: Path) -> list[int] | None:
    """Return the planted late ranks where the run says them; none means that no rank was made late."""
    truth = run / "truth.json"
    return json.loads(truth.read_text()).get("slow_ranks") or [] if truth.exists() else None


# Tools


def stepscope(_: str) -> Tool:
    from stepscope.analyze.collective_costs import collective_rows, late_rank, rank_account, rank_overlap, rank_wait
    from stepscope.analyze.kernels import kernel_costs, kernel_table
    from stepscope.analyze.operators import call_costs
    from stepscope.analyze.stragglers import find_stragglers
    from stepscope.run.aligned import aligned
    from stepscope.run.load import load

    def run(files: list[str]) -> Result:
        shared = aligned(load(files, cache=False, jobs=1))
        ranks = shared.run.ranks
        accounts = tuple(rank_account(rank) for rank in ranks)
        kernels = kernel_table(tuple(kernel_costs(call_costs(rank)) for rank in ranks), chip=None).kernels
        for rank in ranks:
            rank_overlap(rank)
        return {
            "ranks": [_window(a) for a in accounts],
            "launched": [_launched(rank) for rank in ranks],
            "wait_ms": [(rank_wait(shared, i, a).wait_ns or 0) / 1e6 for i, a in enumerate(accounts) if a],
            "collectives": [[r.op, r.count, r.size_bytes, r.busbw_gb_per_s] for r in collective_rows(shared, accounts)],
            "top_kernel": [kernels[0].name, kernels[0].total_ns * len(ranks) / 1e6] if kernels else None,
            "stragglers": [s.rank for s in find_stragglers(shared)],
            "late_rank": late_rank(shared),
        }

    return run


def _window(account: Any) -> Result:
    return {
        "window": account.window_ns / 1e6,
        "compute": account.compute.total_ns / 1e6,
        "comm": account.comm.total_ns / 1e6,
        "exposed": account.exposed_comm.total_ns / 1e6,
        "idle": account.idle_ns / 1e6,
        "overlap %": account.overlap_pct,
    }


def _launched(rank: Any) -> Result:
    """Return the same of the work that the trace holds the launch of, over its own span: what the peers look at."""
    import numpy as np

    from stepscope.intervals import intersect, subtract, union
    from stepscope.trace.table import EventKind

    work = rank.work
    inside = work.launch_row >= 0

    def of(*kinds: EventKind) -> Any:
        keep = inside & np.isin(work.kind, kinds)
        return union(work.start_ns[keep], work.end_ns[keep])

    compute, comm = of(EventKind.KERNEL), of(EventKind.COMM_KERNEL)
    busy = union(work.start_ns[inside], work.end_ns[inside])
    span = int(work.end_ns[inside].max() - work.start_ns[inside].min())
    return {
        "window": span / 1e6,
        "compute": compute.total_ns / 1e6,
        "comm": comm.total_ns / 1e6,
        "exposed": subtract(comm, compute).total_ns / 1e6,
        "idle": (span - busy.total_ns) / 1e6,
        "overlap %": 100 * intersect(comm, compute).total_ns / comm.total_ns if comm.total_ns else None,
    }


def whole_report(cache: str) -> Tool:
    """Return the whole report as the command makes it, from a cache if there is one; the first fills it."""
    from stepscope.analyze.account import account_of
    from stepscope.cache_files import begin, wait_for_all, write_later
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json
    from stepscope.run.load import load, load_sources, run_name
    from stepscope.run.sources import find_sources
    from stepscope.trace.read import keep_freed

    def run(files: list[str]) -> Result:
        if not cache:
            account = account_of(load(files, cache=False, jobs=1))
            json.dumps(report_json(account, diagnose(account)))
            return {}
        keep_freed()
        sources, name = find_sources(files), run_name(files, None)
        account = account_of(load_sources(sources, name=name, cache_folder=Path(cache), write_later=write_later))
        begin()
        json.dumps(report_json(account, diagnose(account)))
        wait_for_all()
        return {}

    return run


def reading(_: str) -> Tool:
    from stepscope.run.load import load

    def run(files: list[str]) -> Result:
        load(files, cache=False)
        return {}

    return run


def first_account(_: str) -> Tool:
    from stepscope.analyze.collective_costs import rank_account, rank_overlap
    from stepscope.run.load import load

    def run(files: list[str]) -> Result:
        for rank in load(files, cache=False).ranks:
            rank_account(rank)
            rank_overlap(rank)
        return {}

    return run


def hta_breakdowns(_: str) -> Tool:
    from hta.trace_analysis import TraceAnalysis

    def run(files: list[str]) -> Result:
        analysis = TraceAnalysis(trace_files=dict(enumerate(files)), trace_dir="/", include_last_profiler_step=True)
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_idle_time_breakdown(ranks=list(range(len(files))), visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        return {}

    return run


def hta(_: str) -> Tool:
    from hta.trace_analysis import TraceAnalysis

    def run(files: list[str]) -> Result:
        analysis = TraceAnalysis(trace_files=dict(enumerate(files)), trace_dir="/", include_last_profiler_step=True)
        times = analysis.get_temporal_breakdown(visualize=False)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        kinds, kernels = analysis.get_gpu_kernel_breakdown(visualize=False)
        try:
            late = analysis.get_potential_stragglers(num_candidates=1)
        except ValueError:  # it raises where it finds no communication kernel
            late = []
        top = kernels.groupby("name")["sum (us)"].sum().sort_values(ascending=False)
        return {
            "ranks": [
                {
                    "window": row["kernel_time(us)"] / 1e3,
                    "compute": row["compute_time(us)"] / 1e3,
                    "idle": row["idle_time(us)"] / 1e3,
                    "overlap %": float(overlap["comp_comm_overlap_pctg"][i]),
                }
                for i, row in times.iterrows()
            ],
            "kinds": {row["kernel_type"]: int(row["sum"]) for _, row in kinds.iterrows()},
            "top_kernel": [str(top.index[0]), float(top.iloc[0]) / 1e3],
            "late_rank": int(late[0]) if len(late) else None,
        }

    return run


def tracelens(_: str) -> Tool:
    from TraceLens import NcclAnalyser, TreePerfAnalyzer

    def run(files: list[str]) -> Result:
        ranks = []
        tops: dict[str, float] = {}
        for file in files:
            analyser = TreePerfAnalyzer.from_file(file)
            time_of = dict(zip(*(analyser.get_df_gpu_timeline()[c] for c in ("type", "time ms")), strict=True))
            kernels = analyser.get_df_kernels()
            for name, total_us in kernels.groupby("Kernel name")["Kernel duration (µs)"].sum().items():
                tops[str(name)] = tops.get(str(name), 0.0) + float(total_us)
            comm, exposed = time_of["total_comm_time"], time_of["exposed_comm_time"]
            ranks.append(
                {
                    "window": time_of["total_time"],
                    "compute": time_of["computation_time"],
                    "comm": comm,
                    "exposed": exposed,
                    "idle": time_of["idle_time"],
                    "overlap %": 100 * (comm - exposed) / comm if comm else None,
                }
            )
        together = NcclAnalyser(files, len(files))
        rows = together.build_df_nccl_implicit_sync_cat(strict_metadata_check=False)
        late = together.build_df_straggler_summary(strict_metadata_check=False)
        return {
            "ranks": ranks,
            "wait_ms": [] if late.empty else [t / 1e3 for t in late.sort_values("rank")["total_wait_time_us"]],
            "collectives": len(rows),
            "busbw": None if rows.empty else float(rows["bus bw (GB/s)"].mean()),
            "top_kernel": [(top := max(tops, key=lambda name: tops[name])), tops[top] / 1e3],
            "late_rank": None if late.empty else int(late["rank"].iloc[0]),
        }

    return run


TOOLS: dict[str, Callable[[str], Tool]] = {
    "stepscope": stepscope,
    "stepscope report": whole_report,
    "HTA": hta,
    "TraceLens": tracelens,
    "reading": reading,
    "first account": first_account,
    "whole report": whole_report,
    "second report": whole_report,
    HTA: hta_breakdowns,
    TRACELENS: tracelens,
}


# Tables


def cost_table(results: list[Result]) -> str:
    lines = [f"{'run':<32} {'MB':>6} {'tool':<17} {'CPU s':>7} {'x ours':>7} {'peak MB':>8} {'x ours':>7}"]
    for result in results:
        ours = result["tools"][OURS[0]]
        for tool, found in result["tools"].items():
            head = f"{result['run']:<32} {result['size_mb']:>6.1f} {tool:<17}"
            if "failed" in found:
                lines.append(f"{head} failed: {found['failed'][:70]}")
                continue
            lines.append(
                f"{head} {found['cpu_s']:>7.2f} {found['cpu_s'] / ours['cpu_s']:>7.1f} {found['peak_mb']:>8.0f} "
                f"{found['peak_mb'] / ours['peak_mb']:>7.1f}"
            )
    return "\n".join(lines)


def agreement_table(results: list[Result]) -> str:
    """Return the sums over ranks in ms: ours by the contract, ours of launched work alone, and the peers'."""
    names = ("window", "compute", "comm", "exposed", "idle", "overlap %")
    lines = [f"{'run':<32} {'of':<22} " + " ".join(f"{name:>9}" for name in names) + f" {'top kernel':>11}"]
    for result in results:
        tools = result["tools"]
        ours = tools[OURS[0]]
        rows = {"stepscope, window": ours["ranks"], "stepscope, launched": ours["launched"]}
        rows |= {tool: tools[tool].get("ranks") for tool in PEERS if tool in tools}
        for of, ranks in rows.items():
            top = tools.get(of.partition(",")[0], {}).get("top_kernel")
            shown = " ".join(f"{_over_ranks(ranks, name):>9}" for name in names)
            lines.append(f"{result['run']:<32} {of:<22} {shown} {'' if not top else f'{top[1]:.2f}':>11}")
    return "\n".join(lines)


def _over_ranks(ranks: list[Result] | None, name: str) -> str:
    values = [rank[name] for rank in ranks or [] if rank.get(name) is not None]
    if not values or len(values) < len(ranks or []):
        return "-"
    return f"{sum(values) / len(values):.2f}" if name.endswith("%") else f"{sum(values):.2f}"


def blame_table(results: list[Result]) -> str:
    lines = [f"{'run':<32} {'planted':<9} {'tool':<10} {'late rank':>9} {'after shift':>12}  waits in ms by rank"]
    for result in results:
        planted = "unknown" if result["truth"] is None else ", ".join(map(str, result["truth"])) or "none"
        for tool, after in result["late_after_shift"].items():
            found = result["tools"][tool]
            waits = " ".join(f"{w:.1f}" for w in found.get("wait_ms", []))
            lines.append(
                f"{result['run']:<32} {planted:<9} {tool:<10} {found.get('late_rank')!s:>9} {after!s:>12}  {waits}"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
