"""How fast and in how much memory traces are read: ours, orjson and HTA side by side, each in a process of its own.

    python benchmarks/read.py [--sizes 100 500 2000] [--peers] [--rounds 3] [--out read.json]

Inputs are made by repeating real events (`big_trace.py`), plain and gzip. `--peers` also runs orjson and HTA (package
`traceinsight`), installed once into an environment of their own under the cache folder. Rounds interleave the readers;
the best CPU time of each counts. CPU time starts after the imports and includes everything else: compiling the scanner
too. HTA takes several times the file in memory, so it only gets files up to `--peer-limit` megabytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer_environment import peer_python

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

PEER_PACKAGES = ["traceinsight", "orjson"]
PEERS = ("orjson", "hta", "hta account")
TARGETS = {("ours", "json"): 40.0, ("ours", "gz"): 32.0, ("ours account", "json"): 30.0, ("ours account", "gz"): 30.0}
MAX_STEPS = 8
"""HTA slows down with the number of steps; few are kind to it."""


def main() -> int:
    arguments = parsed()
    if arguments.run_one:
        print(json.dumps(measured(*arguments.run_one)))
        return 0
    folder = Path(arguments.folder)
    python = peer_python(folder / "peers", PEER_PACKAGES) if arguments.peers else None
    results = [row for path, size in inputs(arguments, folder) for row in compared(path, size, python, arguments)]
    print(table(results))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=1))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 2000], metavar="MB")
    parser.add_argument("--formats", nargs="+", default=["json", "gz"], choices=["json", "gz"])
    parser.add_argument("--readers", nargs="+", default=list(READERS), choices=list(READERS))
    parser.add_argument("--peers", action="store_true", help="run orjson and HTA too")
    parser.add_argument("--peer-limit", type=int, default=100, metavar="MB", help="largest file HTA is given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "stepscope-benchmarks"))
    parser.add_argument("--out")
    parser.add_argument("--run-one", nargs=2, help=argparse.SUPPRESS)
    return parser.parse_args()


def inputs(arguments: argparse.Namespace, folder: Path) -> list[tuple[Path, int]]:
    from big_trace import big_trace

    return [
        (big_trace(folder, size, compressed=kind == "gz", max_steps=MAX_STEPS), size)
        for size in arguments.sizes
        for kind in arguments.formats
    ]


def compared(path: Path, size: int, peer: Path | None, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Return one row per reader for one file: the round with the least CPU time."""
    best: dict[str, dict[str, Any]] = {}
    for _ in range(arguments.rounds):
        for reader in arguments.readers:
            python = Path(sys.executable) if reader not in PEERS else peer
            if python is None or (reader.startswith("hta") and size > arguments.peer_limit):
                continue
            row = in_own_process(python, reader, path)
            if reader not in best or row["cpu_s"] < best[reader]["cpu_s"]:
                best[reader] = row | {"reader": reader, "file": path.name, "size_mb": size}
    return list(best.values())


def in_own_process(python: Path, reader: str, path: Path) -> dict[str, Any]:
    command = [str(python), __file__, "--run-one", reader, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{reader} failed on {path}:\n{done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measured(reader: str, path: str) -> dict[str, Any]:
    """Return the cost of reading one file, in this process."""
    import resource

    from peak_memory import mb

    read = READERS[reader]()
    base_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    num_events = read(path)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"cpu_s": cpu, "wall_s": wall, "peak_mb": mb(peak_kb), "base_mb": mb(base_kb), "num_events": num_events}


Reader = Callable[[str], int]


def ours() -> Reader:
    from stepscope.trace.read import read

    return lambda path: read(path).num_events


def ours_threads() -> Reader:
    from stepscope.trace.read import read

    return lambda path: read(path, threads=os.cpu_count() or 1).num_events


def ours_account() -> Reader:
    """Read a trace and make the whole first account of it."""
    from stepscope.analyze.ranks.overlap import rank_overlap
    from stepscope.analyze.ranks.window import rank_account
    from stepscope.run.load import load

    def account(path: str) -> int:
        run = load(path, cache=False, jobs=1)
        for rank in run.ranks:
            assert rank_account(rank)
            assert rank_overlap(rank)
        return sum(rank.trace.num_events for rank in run.ranks)

    return account


def orjson_columns() -> Reader:
    """Read with orjson into columns of the same content; times are floats, as orjson gives them."""
    import gzip

    import numpy as np
    import orjson

    from stepscope.trace.schema import ARGS

    column_of = {key: column.name for column in ARGS for key in column.keys}

    def read(path: str) -> int:
        data = Path(path).read_bytes()
        if path.endswith(".gz"):
            data = gzip.decompress(data)
        events = orjson.loads(data)["traceEvents"]
        ids: dict[Any, int] = {}
        columns: dict[str, Any] = {
            key: np.array([ids.setdefault(str(e.get(key)), len(ids)) for e in events]) for key in ("ph", "cat", "name")
        }
        for key in ("pid", "tid", "ts", "dur"):
            columns[key] = [e.get(key) for e in events]
        args: dict[str, list[Any]] = {column.name: [] for column in ARGS}
        for row, event in enumerate(events):
            for key, value in event.get("args", {}).items():
                name = column_of.get(key)
                if name:
                    args[name].append(
                        (row, value if isinstance(value, int | float) else ids.setdefault(str(value), len(ids)))
                    )
        columns |= {name: np.array(pairs) for name, pairs in args.items()}
        return len(events)

    return read


def hta() -> Reader:
    import logging

    from hta.common.trace import parse_trace_file

    logging.disable(logging.CRITICAL)
    return lambda path: len(parse_trace_file(path)[1])


def hta_account() -> Reader:
    """Parse with HTA and make its temporal, overlap, idle and kernel breakdowns."""
    import logging

    from hta.trace_analysis import TraceAnalysis

    logging.disable(logging.CRITICAL)

    def account(path: str) -> int:
        analysis = TraceAnalysis(trace_files={0: path}, trace_dir="/")
        analysis.get_temporal_breakdown(visualize=False)
        analysis.get_comm_comp_overlap(visualize=False)
        analysis.get_idle_time_breakdown(visualize=False)
        analysis.get_gpu_kernel_breakdown(visualize=False)
        return len(analysis.t.get_trace(0))

    return account


READERS: dict[str, Callable[[], Reader]] = {
    "ours": ours,
    "ours threads": ours_threads,
    "ours account": ours_account,
    "orjson": orjson_columns,
    "hta": hta,
    "hta account": hta_account,
}


_HEAD = (
    f"{'file':<22} {'reader':<14} {'CPU s':>8} {'wall s':>8} {'MB/s':>7} {'peak MB':>8} {'/raw':>6} "
    f"{'HTA x CPU':>10} {'HTA x mem':>10}"
)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as text, with how many times less CPU time and memory ours takes than HTA."""
    hta_of = {(row["file"], row["reader"]): row for row in rows}
    lines = [_HEAD]
    for row in rows:
        peer = hta_of.get((row["file"], "hta account" if row["reader"] == "ours account" else "hta"))
        target = TARGETS.get((row["reader"], row["file"].rsplit(".", 1)[-1]))
        cpu = f"{peer['cpu_s'] / row['cpu_s']:.1f}" if peer else "-"
        memory = f"{peer['peak_mb'] / row['peak_mb']:.1f}" if peer else "-"
        goal = f"  (target {target:.0f})" if peer and target else ""
        lines.append(
            f"{row['file']:<22} {row['reader']:<14} {row['cpu_s']:>8.3f} {row['wall_s']:>8.3f} "
            f"{row['size_mb'] / row['cpu_s']:>7.0f} {row['peak_mb']:>8.0f} {row['peak_mb'] / row['size_mb']:>6.2f} "
            f"{cpu:>10} {memory:>10}{goal}"
        )
    skipped = {row["size_mb"] for row in rows if (row["file"], "hta") not in hta_of}
    if skipped and any(row["reader"] == "hta" for row in rows):
        sizes = ", ".join(f"{size} MB" for size in sorted(skipped))
        lines.append(f"HTA was not run on {sizes}: it needs about six times the file in memory")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
