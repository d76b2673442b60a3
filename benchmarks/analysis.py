"""What the whole analysis costs beside reading: large runs from files, and the clocks of a thousand ranks in memory.

    python benchmarks/analysis.py [--events 500000] [--ranks 8] [--sample RUN] [--folder DIR] [--out analysis.json]

The large run repeats the events of a real one (`--sample`, a folder with one trace per rank; ranks beyond those are
copies). It is read and analysed in one process on one core: account, findings and the JSON report. The second table
matches and aligns ranks whose collectives, arrivals and clocks are made up in memory, so that their offsets are known.
"""

import argparse
import gzip
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
SAMPLE = ROOT / "tests" / "data" / "h200-hsdp"
MANY = ((64, 1000, 0), (256, 1000, 0), (1024, 1000, 0), (1024, 1000, 8))
"""ranks, collectives of each, and size of a second group that every other collective is in"""


def main() -> int:
    arguments = parsed()
    if arguments.run_one:
        print(json.dumps(analysed(arguments.run_one)))
        return 0
    folder = large_run(Path(arguments.folder), arguments)
    command = [sys.executable, __file__, "--run-one", str(folder)]
    large = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    many = [matched(*size) for size in MANY]
    print(large_table(large), many_table(many), sep="\n\n")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({"large": large, "many": many}, indent=1))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--events", type=int, default=500_000, help="of each rank")
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    parser.add_argument("--folder", default=str(Path(tempfile.gettempdir()) / "stepscope-benchmarks"))
    parser.add_argument("--out")
    parser.add_argument("--run-one", help=argparse.SUPPRESS)
    return parser.parse_args()


# A large run --------------------------------------------------------------------------------------------------------


def large_run(folder: Path, arguments: argparse.Namespace, *, max_steps: int | None = None) -> Path:
    """Return a folder with the large run, made unless it is there already; all its steps are marked, or so many."""
    marked = f"-{max_steps}steps" if max_steps else ""
    target = folder / f"{arguments.sample.name}-{arguments.ranks}x{arguments.events}{marked}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    samples = [json.loads(gzip.decompress(p.read_bytes())) for p in sorted(arguments.sample.glob("*.json.gz"))]
    events = [complete(sample.pop("traceEvents")) for sample in samples]
    repetitions = max(1, round(arguments.events / max(map(len, events))))
    window_us = max(duration_us(mine) for mine in events) + 1000  # the same for all: ranks stay together
    for rank in range(arguments.ranks):
        same = rank % len(samples)
        document = samples[same]
        document.setdefault("distributedInfo", {}).update(rank=rank, world_size=arguments.ranks)
        with (unfinished / f"rank{rank}.json").open("w") as f:
            if rank == same:
                f.writelines(repeated(document, events[same], repetitions, window_us, max_steps))
            else:  # another header before the same events
                f.write(head(document))
                with (unfinished / f"rank{same}.json").open() as events_of_same:
                    events_of_same.readline()
                    shutil.copyfileobj(events_of_same, f, 1 << 20)
    unfinished.rename(target)
    return target


def duration_us(events: list[dict[str, Any]]) -> int:
    return int(max(e["ts"] for e in events) - min(e["ts"] for e in events))


def repeated(
    document: dict[str, Any],
    events: list[dict[str, Any]],
    repetitions: int,
    window_us: int,
    max_steps: int | None = None,
) -> Iterator[str]:
    """Yield a trace with these events over and over."""
    from big_trace import MOVING, STEP, TIME, moved, unmarked, with_steps

    body = ",\n  ".join(map(json.dumps, events))
    found = [(m.group(1), int(m.group(2))) for m in MOVING.finditer(body)]
    num_ids = 1 + max(number for key, number in found if key not in (TIME, STEP))
    num_steps = len({number for key, number in found if key == STEP})
    parts = MOVING.split(body)
    kept = with_steps(repetitions, max(1, max_steps // num_steps) if max_steps else repetitions)
    yield head(document)
    for i in range(repetitions):
        body = moved(parts, i, window_us, num_ids, num_steps)
        yield (",\n  " if i else "") + (body if i in kept else unmarked(body))
    yield "\n]}\n"


def head(document: dict[str, Any]) -> str:
    """Return the first line of a trace, up to its events."""
    return json.dumps(document)[:-1] + ', "traceEvents": [\n'


def complete(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that may follow themselves: device work whose launch is there, no end of the profiler's."""
    spans = [e for e in events if e.get("ph") in ("X", "s", "f") and e.get("cat") != "Trace"]
    host = {"cuda_runtime", "cuda_driver"}
    launched = {e.get("args", {}).get("correlation") for e in spans if e.get("cat") in host}
    return [
        e
        for e in spans
        if e["name"] != "cudaDeviceSynchronize"
        and ("correlation" not in e.get("args", {}) or e["args"]["correlation"] in launched)
    ]


def analysed(folder: str) -> dict[str, Any]:
    """Return what reading and analysing a run costs, in this process."""
    from stepscope.analyze.account import account_of
    from stepscope.diagnose.findings import diagnose
    from stepscope.document.report import report_json
    from stepscope.run.load import load

    clock = [time.process_time()]
    run = load(folder, cache=False, jobs=1)
    clock.append(time.process_time())
    after_reading_mb = peak_mb()
    account = account_of(run)
    clock.append(time.process_time())
    diagnosis = diagnose(account)
    clock.append(time.process_time())
    json.dumps(report_json(account, diagnosis))
    clock.append(time.process_time())
    read, account_s, diagnose_s, report_s = (b - a for a, b in pairwise(clock))
    return {
        "ranks": len(run.ranks),
        "events": sum(rank.trace.num_events for rank in run.ranks),
        "steps": account.num_steps,
        "size_mb": sum(Path(rank.trace.path).stat().st_size for rank in run.ranks) / 1e6,
        "read_s": read,
        "account_s": account_s,
        "diagnose_s": diagnose_s,
        "report_s": report_s,
        "after_reading_mb": after_reading_mb,
        "peak_mb": peak_mb(),
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


# Many ranks ---------------------------------------------------------------------------------------------------------


def matched(num_ranks: int, num_collectives: int, second_group: int) -> dict[str, Any]:
    """Return what matching and aligning made-up ranks costs, and how well their clocks come out."""
    import numpy as np

    from stepscope.run.clocks.offsets import align_clocks
    from stepscope.run.matching.match import match_collectives

    ranks, offset_ns = made_up_ranks(num_ranks, num_collectives, second_group)
    clock = [time.process_time()]
    matches = match_collectives(ranks)
    clock.append(time.process_time())
    clocks = align_clocks(ranks, matches)
    clock.append(time.process_time())
    error = np.abs(clocks.offset_ns + offset_ns)
    return {
        "ranks": num_ranks,
        "collectives": num_collectives,
        "second_group": second_group,
        "matches": len(matches),
        "match_s": clock[1] - clock[0],
        "align_s": clock[2] - clock[1],
        "worst_error_us": float(error.max()) / 1e3,
        "within_uncertainty": bool((error <= clocks.uncertainty_ns).all()),
    }


def made_up_ranks(num_ranks: int, num_collectives: int, second_group: int) -> tuple[Any, Any]:
    """Return ranks that meet every 10 ms, each at a time of its own and on a clock of its own, and their offsets."""
    import numpy as np

    rng = np.random.default_rng(0)
    ready = np.arange(num_collectives) * 10_000_000
    arrival = ready + rng.integers(0, 300_000, (num_ranks, num_collectives))
    last = np.broadcast_to(arrival.max(axis=0), arrival.shape)
    group = np.zeros(num_collectives, np.int32)
    if second_group:
        group = (np.arange(num_collectives) % 2).astype(np.int32)
        together = arrival.reshape(-1, second_group, num_collectives).max(axis=1)
        last = np.where(group == 1, np.repeat(together, second_group, axis=0), last)
    end = last + 300_000 + rng.integers(0, 3_000, arrival.shape)
    offset = rng.integers(-(10**10), 10**10, num_ranks)
    offset[0] = 0
    ranks = (
        made_up_rank(r, ready + offset[r], arrival[r] + offset[r], end[r] + offset[r], group, num_ranks, second_group)
        for r in range(num_ranks)
    )
    return tuple(ranks), offset


def made_up_rank(
    rank: int, issue_ns: Any, start_ns: Any, end_ns: Any, group: Any, num_ranks: int, second_group: int
) -> Any:
    import numpy as np

    from stepscope.contract.collectives import OP_CODE
    from stepscope.run.collectives.groups import Group
    from stepscope.run.collectives.table import Collectives, Messages
    from stepscope.run.rank import Rank
    from stepscope.run.steps import Steps

    count, per_step = len(issue_ns), len(issue_ns) // 10
    none, size = np.empty(0, np.int64), np.full(count, 4096)
    groups = [Group("0", "default_pg", tuple(range(num_ranks)), num_ranks)]
    if second_group:
        first = rank // second_group * second_group
        groups.append(Group(f"tp{first}", "tp", tuple(range(first, first + second_group)), second_group))
    collectives = Collectives(
        start_ns=start_ns,
        end_ns=end_ns,
        issue_ns=issue_ns,
        op=np.full(count, OP_CODE["all_reduce"], np.uint8),
        group=group,
        in_bytes=size,
        out_bytes=size,
        peer=np.full(count, -1, np.int32),
        step=(np.arange(count) // per_step).astype(np.int32),
        device_index=np.arange(count),
        record_row=np.arange(count),
        groups=tuple(groups),
        messages=Messages(none, none.astype(bool), none.astype(np.int32), none),
    )
    begin = issue_ns[::per_step]
    steps = Steps(number=np.arange(len(begin)), start_ns=begin, end_ns=np.append(begin[1:], issue_ns[-1] + 10_000_000))
    unused: Any = None
    return Rank(rank, "order", unused, unused, steps, unused, collectives, unused)


# Tables -------------------------------------------------------------------------------------------------------------


def large_table(found: dict[str, Any]) -> str:
    rest = found["account_s"] + found["diagnose_s"] + found["report_s"]
    return "\n".join(
        (
            f"{found['ranks']} ranks, {found['events']:,} events, {found['steps']} steps, {found['size_mb']:.0f} MB",
            f"{'':<12} {'CPU s':>8}",
            *(f"{name:<12} {found[f'{name}_s']:>8.2f}" for name in ("read", "account", "diagnose", "report")),
            f"analysis / reading {rest / found['read_s']:.2f} (target: at most 3)",
            f"peak {found['after_reading_mb']:.0f} MB after reading, {found['peak_mb']:.0f} MB at the end",
        )
    )


def many_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'ranks':>6} {'each':>6} {'groups of':>9} {'matches':>8} {'match s':>8} {'align s':>8} {'error us':>9}  held"
    ]
    for r in rows:
        of = f"{r['second_group']}, all" if r["second_group"] else "all"
        lines.append(
            f"{r['ranks']:>6} {r['collectives']:>6} {of:>9} {r['matches']:>8} {r['match_s']:>8.2f} "
            f"{r['align_s']:>8.2f} {r['worst_error_us']:>9.2f}  {'yes' if r['within_uncertainty'] else 'no'}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
