"""Are lines of a CPU job's training loop named that training does not need, and how far off are their savings?

    python benchmarks/unseen_loops.py measure OUT [NAME ...]   record every job, time every fault with and without it
    python benchmarks/unseen_loops.py table OUT                report the recordings, hold them against the truth

A fault is named where one of the first two findings has one of its lines (marked in `unseen_loop_job.py`) or a line
around or inside it as its first place; the saving is that finding's, alone, as a share of the step. The truth is the
share of the training thread's CPU time that goes with the line, of wall time for faults that wait (`WAITS`). Of jobs
without a fault every finding that says more than 3 % of the step is a false claim.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
JOB, CLEAN = HERE / "unseen_loop_job.py", HERE / "unseen_clean_job.py"
KNOWN = ("deepcopy", "sha256", "fsync", "shuffle")
"""seen before the rule was written"""
ALONE = (
    "parameter_statistics", "gradient_histogram", "metrics_json", "average", "tokenise", "subprocess", "regex",
    "replay_sort", "class_weights", "poll", "svg", "garbage", "http", "hook_statistics",
)  # fmt: skip
HELD_OUT = (
    "augment", "schedule", "gradient_norms", "weights_csv", "packed_batch", "spread", "cosine", "folder", "replay_cat",
    "entropy", "tensor_hook",
)  # fmt: skip
"""written when the rule was done; the last two lie inside forward, which it does not judge, and in a hook"""
TOGETHER = ("spectrum", "auc", "confusion", "gradient_histogram", "metrics_json")
HELD_OUT_TOGETHER = ("gradient_norms", "packed_batch", "cosine")
SETS = (
    ("seen", 1, (*KNOWN, *ALONE)),
    ("seen", 2, TOGETHER),
    ("held out", 1, HELD_OUT),
    ("held out", 2, HELD_OUT_TOGETHER),
)
WAITS = ("fsync", "subprocess", "poll", "http")
SHAPES = ("plain", "accumulation", "gan", "evaluation", "images", "teacher", "autoencoder")
SHAPES_TOGETHER = ("plain", "accumulation")
STEPS, WINDOW = 60, "20:28"
FALSE_PCT = 3.0
DRAWS = 1000


def jobs() -> dict[str, tuple[int, list[str]]]:
    """Return every recording's number of ranks and the words of its job."""
    found: dict[str, tuple[int, list[str]]] = {}
    for _, ranks, faults in SETS:
        found |= {f"{name}.{ranks}": (ranks, [str(JOB), "run", name, str(STEPS)]) for name in faults}
    for ranks, shapes in ((1, SHAPES), (2, SHAPES_TOGETHER)):
        found |= {f"clean-{name}.{ranks}": (ranks, [str(CLEAN), name, str(STEPS)]) for name in shapes}
    return found


def measure(out: Path, wanted: list[str]) -> None:
    for name, (ranks, words) in jobs().items():
        if (wanted and name not in wanted) or (out / name / "run.json").exists():
            continue
        record = [sys.executable, "-m", "stepscope", "record", "--out", str(out / name), "--steps", WINDOW, "--"]
        run([*record, *start(ranks), *words])
        print(f"recorded {name}", flush=True)
    for name, ranks, faults in SETS:
        if not wanted and not truth_file(out, name, ranks).exists():
            run([*start(ranks), str(JOB), "time", str(truth_file(out, name, ranks)), ",".join(faults)])


def truth_file(out: Path, name: str, ranks: int) -> Path:
    return out / f"truth-{name.replace(' ', '-')}-{ranks}.json"


def start(ranks: int) -> list[str]:
    if ranks == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]


def run(command: list[str]) -> None:
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command[-4:])} failed:\n{done.stderr[-1500:]}", flush=True)


def planted_lines(fault: str, folder: Path) -> set[int]:
    """Return the lines of the job that make up a fault, as it was when it was recorded."""
    kept = folder / "source" / JOB.name
    text = (kept if kept.exists() else JOB).read_text().splitlines()
    return {number for number, line in enumerate(text, 1) if line.endswith(f"# fault {fault}")}


def is_named(finding: dict[str, Any], lines: set[int]) -> bool:
    """Return whether a finding's places have one of a fault's lines."""
    return any(w["file"] and w["file"].endswith(JOB.name) and w["line"] in lines for w in finding["where"])


def share(pairs: list[list[list[float]]], kind: int) -> tuple[float, float, float]:
    """Return what leaving a line out saves of the step in percent, with its 95 % interval over pairs of blocks."""
    rng = random.Random(1)
    saved = [100 * (1 - without[kind] / whole[kind]) for whole, without in pairs]
    drawn = sorted(statistics.median(rng.choices(saved, k=len(saved))) for _ in range(DRAWS))
    return statistics.median(saved), drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS) - 1]


def report_of(folder: Path) -> dict[str, Any] | None:
    command = [sys.executable, "-m", "stepscope", "report", str(folder), "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else None


def places(finding: dict[str, Any]) -> str:
    first = finding["where"][0] if finding["where"] else None
    return f":{first['line']}" if first and first["line"] else ""


def table(out: Path) -> None:
    for name in dict.fromkeys(name for name, _, _ in SETS):
        print(f"\n{name}\n")
        print("| fault | ranks | first finding | second finding | said | interval | real | holds |")
        print("|---|---|---|---|---|---|---|---|")
        rows = [row for kind, ranks, faults in SETS if kind == name for row in told(out, kind, ranks, faults)]
        errors = [abs(said - real) for said, real, _, _ in rows]
        named, held = (sum(row[k] for row in rows) for k in (2, 3))
        mean = statistics.mean(errors) if errors else 0.0
        print(f"\nnamed {named} of {len(rows)}, interval holds {held}, mean error {mean:.1f} % of the step")
    claims(out)


def told(out: Path, kind: str, ranks: int, faults: tuple[str, ...]) -> list[tuple[float, float, bool, bool]]:
    """Print what is said of each fault and what is real; return both, whether it is named, and the interval holds."""
    truth, rows = json.loads(truth_file(out, kind, ranks).read_text()), []
    for fault in faults:
        folder = out / f"{fault}.{ranks}"
        report = report_of(folder)
        if report is None:
            print(f"| {fault} | {ranks} | not recorded |")
            continue
        first = [f for f in report["findings"] if (f["saving_alone_ms"] or 0) > 0][:2]
        hit = next((f for f in first if is_named(f, planted_lines(fault, folder))), None)
        mid, low, high = share(truth[fault], 0 if fault in WAITS else 1)
        said = hit["saving_pct"] if hit else 0.0
        whole_ms = 100 * hit["saving_alone_ms"] / said if hit else 1.0
        least, most = (100 * hit[k] / whole_ms for k in ("saving_low_ms", "saving_high_ms")) if hit else (0.0, 0.0)
        holds = hit is not None and least <= high and low <= most
        names = [f"{f['id']} {places(f)} {f['saving_pct']:.1f} %" for f in first] + ["", ""]
        shown = f"{said:.1f} | {least:.1f} to {most:.1f}" if hit else "- | -"
        real = f"{mid:.1f} ({low:.1f} to {high:.1f})"
        print(
            f"| {fault} | {ranks} | {names[0]} | {names[1]} | {shown} | {real} | {'yes' if holds else 'NO'} |",
            flush=True,
        )
        rows.append((said, mid, hit is not None, holds))
    return rows


def claims(out: Path) -> None:
    """Print what is claimed of jobs without a fault."""
    wrong = 0
    for name in (n for n in jobs() if n.startswith("clean-")):
        report = report_of(out / name)
        found = [f for f in report["findings"] if f["saving_pct"] > 0] if report else []
        wrong += sum(f["saving_pct"] > FALSE_PCT for f in found)
        said = ", ".join(f"{f['id']} {places(f)} {f['saving_pct']:.1f} %" for f in found)
        print(f"| {name} | {'not recorded' if report is None else said or 'nothing'} |")
    print(f"\n{wrong} claims over {FALSE_PCT:g} % of the step")


def main() -> int:
    what, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if what == "measure":
        measure(out, sys.argv[3:])
    else:
        table(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
