"""The same runs through stepscope, HTA and TraceLens: time, memory, whether the numbers agree, and whom they blame.

    python benchmarks/peers.py [--rounds 5] [--write docs/peers.md]     how fast: the whole table (`peer_speed.py`)
    python benchmarks/peers.py RUN ... --peers PYTHON [--rounds 2] [--shift-rank 1] [--shift-ms 20] [--out peers.json]

PYTHON is the interpreter of an environment with `HolisticTraceAnalysis` and TraceLens (github.com/AMD-AGI/TraceLens).
Each tool gets the same files in a process of its own and does what all three can: temporal breakdown, overlap, kernels
and collectives of every rank, and who is late. Rounds interleave the tools and the least CPU time of each counts; it
starts after the imports and includes processes that a tool starts; memory is the peak of the process and of the largest
one it started. `stepscope report` does the whole report besides.

A rank's file is then shifted in time and all three are asked again who is late: nothing about the job has changed.
"""

import argparse
import contextlib
import gzip
import json
import logging
import re
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peak_memory import mb, own_peak_mb

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
OURS = ("stepscope", "stepscope report")
PEERS = ("HTA", "TraceLens")
Result = dict[str, Any]
Tool = Callable[[list[str]], Result]


def main() -> int:
    arguments = parsed()
    if arguments.run_one:
        tool, *files = arguments.run_one
        print(json.dumps(measured(tool, files)))
        return 0
    if not arguments.runs:
        import peer_speed

        text = peer_speed.speed_table(arguments)
        print(text)
        if arguments.write:
            peer_speed.write(Path(arguments.write), text)
        return 0
    results = [case_result(Path(run), arguments) for run in arguments.runs]
    for show in (cost_table, agreement_table, blame_table):
        print(show(results), end="\n\n")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", help="folders with one trace per rank; none for the table of speed")
    parser.add_argument("--peers", metavar="PYTHON", help="interpreter with HTA and TraceLens")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--shift-rank", type=int, default=1)
    parser.add_argument("--shift-ms", type=int, default=20)
    parser.add_argument("--out")
    speed = parser.add_argument_group("the table of speed")
    speed.add_argument("--write", metavar="PAGE", help="page whose table is replaced")
    speed.add_argument("--megabytes", type=int, default=100, help="of the trace of one rank")
    speed.add_argument("--ranks", type=int, nargs="*", default=[4, 8, 9, 64])
    speed.add_argument("--large-ranks", type=int, nargs="*", default=[4], help="ranks of so many megabytes each")
    speed.add_argument("--sample", type=Path, help="run whose events are repeated (a small one of the tests)")
    speed.add_argument("--events", type=int, default=100_000, help="of each of several ranks")
    speed.add_argument("--peer-ranks", type=int, default=8, help="largest number of ranks that the peers get")
    speed.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "stepscope-benchmarks")
    parser.add_argument("--run-one", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


# Running ------------------------------------------------------------------------------------------------------------


def case_result(run: Path, arguments: argparse.Namespace) -> Result:
    """Return what every tool says of one run, and of the same run with one rank shifted."""
    files = sorted(str(p) for p in run.iterdir() if p.name.endswith((".json", ".json.gz")) and p.name != "truth.json")
    best: dict[str, Result] = {}
    for _ in range(arguments.rounds):
        for tool in (*OURS, *(PEERS if arguments.peers else ())):
            found = in_own_process(tool, files, arguments)
            if tool not in best or found.get("cpu_s", 0) < best[tool].get("cpu_s", 0):
                best[tool] = found
    with tempfile.TemporaryDirectory() as folder:
        moved = shifted(files, Path(folder), rank=arguments.shift_rank, by_us=1000 * arguments.shift_ms)
        tools = (OURS[0], *(PEERS if arguments.peers else ()))
        after = {tool: in_own_process(tool, moved, arguments).get("late_rank") for tool in tools}
    return {
        "run": run.name,
        "size_mb": sum(Path(f).stat().st_size for f in files) / 1e6,
        "tools": best,
        "late_after_shift": after,
        "truth": slow_ranks(run),
    }


def in_own_process(tool: str, files: list[str], arguments: argparse.Namespace) -> Result:
    python = arguments.peers if tool in PEERS else sys.executable
    done = subprocess.run([python, __file__, "--run-one", tool, *files], capture_output=True, text=True, check=False)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(tool: str, files: list[str]) -> Result:
    """Return what a tool says and what it costs, in this process."""
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    with contextlib.redirect_stdout(sys.stderr):
        run = TOOLS[tool]()
        cpu, wall = time.process_time(), time.perf_counter()
        found = run(files)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    started = resource.getrusage(resource.RUSAGE_CHILDREN)  # HTA reads files in processes of its own
    peak_mb = own_peak_mb() + mb(started.ru_maxrss)
    return {**found, "cpu_s": cpu + started.ru_utime + started.ru_stime, "wall_s": wall, "peak_mb": peak_mb}


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


# Tools --------------------------------------------------------------------------------------------------------------


def stepscope() -> Tool:
    from stepscope.analyze.kernels.call_costs import call_costs
    from stepscope.analyze.kernels.kernel_costs import kernel_costs
    from stepscope.analyze.kernels.kernels import kernel_table
    from stepscope.analyze.ranks.collectives import collective_rows, late_rank, rank_wait
    from stepscope.analyze.ranks.overlap import rank_overlap
    from stepscope.analyze.ranks.stragglers import find_stragglers
    from stepscope.analyze.ranks.window import rank_account
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
    from stepscope.trace.classify import EventKind

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


def stepscope_report() -> Tool:
    from stepscope.analyze.account import account_of
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json
    from stepscope.run.load import load

    def run(files: list[str]) -> Result:
        account = account_of(load(files, cache=False, jobs=1))
        json.dumps(report_json(account, diagnose(account)))
        return {}

    return run


def hta() -> Tool:
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


def tracelens() -> Tool:
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


TOOLS: dict[str, Callable[[], Tool]] = {
    "stepscope": stepscope,
    "stepscope report": stepscope_report,
    "HTA": hta,
    "TraceLens": tracelens,
}


# Tables -------------------------------------------------------------------------------------------------------------


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
