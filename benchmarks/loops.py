"""Are lines of a CPU job's training loop named that training does not need, and how far off are their savings?

    python benchmarks/loops.py measure OUT [NAME ...]     record every job, time every fault with and without it
    python benchmarks/loops.py table OUT                  report the recordings next to the truth
    python benchmarks/loops.py deleted OUT                one job with ten lines: predicted without each, and measured

A fault of `loop_jobs.py` is named if one of the first two findings has one of its lines as a place; the saving is that
finding's, alone, as a share of the step. The truth is the line's share of the training thread's CPU time, of wall time
for faults that wait (`WAITS`). Of jobs without a fault every finding over 3 % of the step is a false claim.

deleted: the job is recorded once on one rank and once on two with all its lines; `--without` predicts the step without
each. A prediction holds if its interval and the 95 % interval of the truth (over pairs of blocks) overlap.
"""

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from common import HERE, python, recorded, report_of, run, saved_pct, table

JOB = HERE / "loop_jobs.py"
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
LINES = ("tokenise", "statistics", "second_forward", "average", "clip", "log", "row_stack", "entropy")
LINES_TOGETHER = ("small_reduces", "weights_sent")


def jobs() -> dict[str, tuple[int, list[str]]]:
    """Return every recording's number of ranks and the words of its job."""
    found: dict[str, tuple[int, list[str]]] = {}
    for _, ranks, faults in SETS:
        found |= {f"{name}.{ranks}": (ranks, ["run", name, str(STEPS)]) for name in faults}
    for ranks, shapes in ((1, SHAPES), (2, SHAPES_TOGETHER)):
        found |= {f"clean-{name}.{ranks}": (ranks, ["clean", name, str(STEPS)]) for name in shapes}
    return found


def measure(out: Path, wanted: list[str]) -> None:
    for name, (ranks, words) in jobs().items():
        if (wanted and name not in wanted) or (out / name / "run.json").exists():
            continue
        run(recorded(out / name, python(JOB, *words, ranks=ranks), "--steps", WINDOW))
        print(f"recorded {name}", flush=True)
    for name, ranks, faults in SETS:
        chosen = [fault for fault in faults if not wanted or f"{fault}.{ranks}" in wanted]
        if chosen and not truth_file(out, name, ranks).exists():
            run(python(JOB, "time", truth_file(out, name, ranks), ",".join(chosen), ranks=ranks), limit_s=3600)


def truth_file(out: Path, name: str, ranks: int) -> Path:
    return out / f"truth-{name.replace(' ', '-')}-{ranks}.json"


def planted_lines(fault: str, folder: Path) -> set[int]:
    """Return the lines of the job that make up a fault, as it was when it was recorded."""
    kept = folder / "source" / JOB.name
    text = (kept if kept.exists() else JOB).read_text().splitlines()
    return {number for number, line in enumerate(text, 1) if line.endswith(f"# fault {fault}")}


def is_named(finding: dict[str, Any], lines: set[int]) -> bool:
    """Return whether a finding's places have one of a fault's lines."""
    return any(w["file"] and w["file"].endswith(JOB.name) and w["line"] in lines for w in finding["where"])


def places(finding: dict[str, Any]) -> str:
    first = finding["where"][0] if finding["where"] else None
    return f":{first['line']}" if first and first["line"] else ""


def print_tables(out: Path) -> None:
    head = ("fault", "ranks", "first finding", "second finding", "said", "interval", "real", "holds")
    for name in dict.fromkeys(name for name, _, _ in SETS):
        found = [row for kind, ranks, _ in SETS if kind == name for row in rows_of(out, kind, ranks)]
        if not found:
            continue
        print(f"\n{name}\n\n{table(head, (cells for cells, *_ in found))}")
        named, held = sum(row[2] for row in found), sum(row[3] for row in found)
        mean = statistics.fmean(row[1] for row in found)
        print(f"\nnamed {named} of {len(found)}, interval holds {held}, mean error {mean:.1f} % of the step")
    print_claims(out)


def rows_of(out: Path, kind: str, ranks: int) -> list[tuple[list[object], float, bool, bool]]:
    """Return the cells of each fault, the error of its saving, whether it is named, and whether the interval holds."""
    path = truth_file(out, kind, ranks)
    truth, rows = json.loads(path.read_text()) if path.exists() else {}, []
    for fault in truth:
        folder = out / f"{fault}.{ranks}"
        report = report_of(folder)
        if report is None:
            print(f"{fault}.{ranks}: not recorded")
            continue
        first = [f for f in report["findings"] if (f["saving_alone_ms"] or 0) > 0][:2]
        hit = next((f for f in first if is_named(f, planted_lines(fault, folder))), None)
        mid, low, high = saved_pct(truth[fault], 0 if fault in WAITS else 1)
        said = hit["saving_pct"] if hit else 0.0
        whole_ms = 100 * hit["saving_alone_ms"] / said if hit else 1.0
        least, most = (100 * hit[k] / whole_ms for k in ("saving_low_ms", "saving_high_ms")) if hit else (0.0, 0.0)
        holds = hit is not None and least <= high and low <= most
        names = [f"{f['id']} {places(f)} {f['saving_pct']:.1f} %" for f in first] + ["", ""]
        shown = [f"{said:.1f}", f"{least:.1f} to {most:.1f}"] if hit else ["-", "-"]
        real = f"{mid:.1f} ({low:.1f} to {high:.1f})"
        cells = [fault, ranks, *names[:2], *shown, real, "yes" if holds else "NO"]
        rows.append((cells, abs(said - mid), hit is not None, holds))
    return rows


def print_claims(out: Path) -> None:
    """Print what is claimed of jobs without a fault."""
    wrong, rows = 0, []
    for name in (n for n in jobs() if n.startswith("clean-") and (out / n).exists()):
        report = report_of(out / name)
        found = [f for f in report["findings"] if f["saving_pct"] > 0] if report else []
        wrong += sum(f["saving_pct"] > FALSE_PCT for f in found)
        said = ", ".join(f"{f['id']} {places(f)} {f['saving_pct']:.1f} %" for f in found)
        rows.append([name, said or "nothing"])
    print(f"\n{table(('job', 'claims'), rows)}\n\n{wrong} claims over {FALSE_PCT:g} % of the step")


def deleted(out: Path) -> None:
    """Record all lines at once, predict the step without each, and measure it."""
    import stepscope

    rows, errors = [], []
    for ranks, lines in ((1, LINES), (2, (*LINES, *LINES_TOGETHER))):
        folder, times = out / f"deleted.{ranks}", out / f"deleted.{ranks}.json"
        if not folder.exists():
            run(recorded(folder, python(JOB, "run", "+".join(lines), STEPS, ranks=ranks), "--steps", WINDOW))
        if not times.exists():
            run(python(JOB, "time", times, ",".join(lines), "all", ranks=ranks), limit_s=3600)
        analysis, truth = stepscope.load(folder), json.loads(times.read_text())
        for name in LINES if ranks == 1 else LINES_TOGETHER:
            said = analysis.without(f"{JOB.name}:{min(planted_lines(name, folder))}").prediction
            predicted = 100 * (1 - said.step_ns / said.baseline_ns)
            low, high = (100 * (1 - ns / said.baseline_ns) for ns in (said.high_ns, said.low_ns))
            both = [saved_pct(truth[name], clock) for clock in (0, 1)]
            real = both[0] if ranks > 1 else both[1]
            texts = ["{:.1f} ({:.1f} to {:.1f})".format(*one) for one in both]
            holds = low <= real[2] and real[1] <= high
            rows.append([name, f"{predicted:.1f}", f"{low:.1f} to {high:.1f}", *texts, "yes" if holds else "NO"])
            errors.append(abs(predicted - real[0]))
    print(table(("line", "predicted %", "its interval", "real %, wall", "real %, CPU", "holds"), rows))
    print(f"\nmean error {statistics.fmean(errors):.1f} % of the step")


def main() -> int:
    what, out = sys.argv[1], Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    if what == "measure":
        measure(out, sys.argv[3:])
    elif what == "deleted":
        deleted(out)
    else:
        print_tables(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
