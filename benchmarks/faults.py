"""Are planted faults named, and are their savings what deleting the lines really saves? On a GPU.

    python benchmarks/faults.py measure OUT --seconds 540           # one GPU; four ranks share it
    python benchmarks/faults.py measure OUT --tiny --steps 30       # no GPU
    python benchmarks/faults.py judge OUT [--findings 2] [--json PATH]

measure: OUT/truth.json has, for each fault of `fault_jobs.py`, the step with and without it; OUT/NAME is its recording.
Plain runs of one job follow each other in the same processes (none, fault, none, fault, none), and each faulty run is
compared with its two neighbours; this is done twice, in fresh processes, before and after the recordings. `--only a,b`
measures these alone and keeps the others in truth.json.

judge: a finding names the fault by its `line` (a planted line), by a line `inside` a function that the planted lines
call, where it is `felt` (a line marked as paying for it), or only by the `function` around a planted line. "Leading":
this is the first place that the finding names.
"""

import argparse
import ast
import contextlib
import gc
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import HERE, environment, python, recorded, run, shared_device

JOB = HERE / "fault_jobs.py"
WORLD = 4
SESSIONS = {"lm": ("lm",), "vision": ("vision",), "gan": ("gan",), "ranks": ("ddp", "fsdp")}
START_S, MAX_RECORD_S, MIN_RECORD_S = 40.0, 120.0, 25.0
HITS = ("line", "inside", "felt", "function")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("measure", "judge", "series"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", default="", help="names of faults, with commas")
    parser.add_argument("--steps", type=int, default=40, help="of a plain run")
    parser.add_argument("--record-steps", type=int, default=30)
    parser.add_argument("--window", default="12:15", help="the profiled steps, as for stepscope record")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--findings", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--series", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.out = args.out.resolve()
    if args.what == "series":
        run_series(json.loads(args.series), args.steps, args.tiny)
    elif args.what == "judge":
        judge(args)
    else:
        measure_all(args)
    return 0


# Measured


def measure_all(args: argparse.Namespace) -> None:
    """Time every fault, record every fault, then time them again in the other order."""
    args.deadline, source = time.monotonic() + args.seconds, JOB.read_text()
    args.faults, ranks = fault_table(source)
    names = args.only.split(",") if args.only else list(args.faults)
    unknown = sorted(set(names) - set(args.faults))
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(unknown)}; the faults are {', '.join(args.faults)}")
    args.out.mkdir(parents=True, exist_ok=True)
    path, places = args.out / "truth.json", planted_places(source)
    truth = json.loads(path.read_text()) if path.exists() else {"faults": {}}
    for name in names:
        entry = {"job": args.faults[name], "ranks": ranks.get(name, "all"), "steps": args.steps, "tiny": args.tiny}
        calls = called_functions(source, places[name]["planted"])
        truth["faults"][name] = {**entry, **places[name], "calls": calls, "with_runs_ms": [], "without_runs_ms": []}
    with shared_device("cpu" if args.tiny else "cuda"):
        for round_ in range(args.rounds):
            for group, jobs in SESSIONS.items():
                measure([n for n in names if args.faults[n] in jobs], group, round_, args, truth)
            for name in names if round_ == 0 and not args.no_record else ():
                record(name, args)
    save(truth, args.out)
    print(table(truth), flush=True)


def fault_table(source: str) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Read FAULTS and RANKS out of the job's text: this process does without torch."""
    values = {}
    for node in ast.parse(source).body:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id in ("FAULTS", "RANKS")
        ):
            values[node.targets[0].id] = ast.literal_eval(node.value)
    return values["FAULTS"], values["RANKS"]


def planted_places(source: str) -> dict[str, dict[str, list[dict]]]:
    """Find where each fault is planted (`fault == "name"`) and where it is felt (`# felt: name`), with the function."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found: dict[str, dict[str, list[dict]]] = {}

    def place(first: int, last: int) -> dict:
        around = [f for f in functions if f.lineno <= first <= (f.end_lineno or f.lineno)]
        inner = max(around, key=lambda f: f.lineno, default=None)
        place = {"file": JOB.name, "first": first, "last": last, "function": inner.name if inner else None}
        return place | {"function_lines": [inner.lineno, inner.end_lineno] if inner else None}

    def note(name: str, kind: str, first: int, last: int) -> None:
        found.setdefault(name, {"planted": [], "felt": []})[kind].append(place(first, last))

    for node in ast.walk(tree):
        if not isinstance(node, ast.If):
            continue
        for test in ast.walk(node.test):
            if (
                isinstance(test, ast.Compare)
                and isinstance(test.comparators[0], ast.Constant)
                and names_fault(test.left)
            ):
                same = isinstance(test.ops[0], ast.Eq)
                last = node.body[-1].end_lineno if same else node.lineno
                note(str(test.comparators[0].value), "planted", node.lineno, last or node.lineno)
    for number, line in enumerate(source.splitlines(), 1):
        code, mark, names = line.partition("# felt: ")
        for name in names.split() if mark and code.strip() else ():
            note(name, "felt", number, number)
    return found


def names_fault(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "fault") or (
        isinstance(node, ast.Attribute) and node.attr == "fault"
    )


def called_functions(source: str, places: list[dict]) -> list[dict]:
    """Return the functions of the file that the planted lines call: the fault may be blamed on the lines inside."""
    nodes = list(ast.walk(ast.parse(source)))
    lines = {line for place in places for line in range(place["first"], place["last"] + 1)}
    inside = [node.func for node in nodes if isinstance(node, ast.Call) and node.lineno in lines]
    names = {getattr(func, "id", getattr(func, "attr", None)) for func in inside}
    own = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
    return [{"function": node.name, "first": node.lineno, "last": node.end_lineno} for node in own]


def series_of(names: list[str], faults: dict[str, str], backwards: bool) -> list[tuple[str, str]]:
    """Return (job, fault) in the order to run: each fault between two runs without, per job."""
    order: list[tuple[str, str]] = []
    for job in dict.fromkeys(faults[name] for name in names):
        own = [name for name in names if faults[name] == job]
        order.append((job, "none"))
        for name in reversed(own) if backwards else own:
            order += [(job, name), (job, "none")]
    return order


def pairs_of(results: list[tuple[str, str, float]]) -> dict[str, tuple[float, float]]:
    """Return the step with each fault, and the mean of its neighbours without, in ms."""
    found = {}
    for i, (job, fault, step_ms) in enumerate(results):
        near = [r[2] for r in results[max(i - 1, 0) : i + 2] if r[0] == job and r[1] == "none"]
        if fault != "none" and near:
            found[fault] = (step_ms, statistics.fmean(near))
    return found


def run_series(series: list[tuple[str, str]], steps: int, tiny: bool) -> None:
    """Inside a session's process, one per rank: run the jobs one after the other and print a line for each."""
    import fault_jobs
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "RANK" in os.environ:
        fault_jobs.join_ranks(device)
    for job, fault in series:
        clock = fault_jobs.train(job, fault, steps, tiny, device)
        if clock.rank == 0:
            print("result " + json.dumps([job, fault, clock.median_ms()]), flush=True)
        del clock
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    os._exit(0)  # the group's teardown takes seconds and measures nothing


def session(series: list[tuple[str, str]], ranks: int, args: argparse.Namespace) -> list[tuple[str, str, float]]:
    """Run a series in fresh processes; return the rows printed before the end, a failure or the limit."""
    words = ["series", args.out, "--series", json.dumps(series), "--steps", args.steps]
    command = python(__file__, *words, *(["--tiny"] if args.tiny else []), ranks=ranks)
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(command, env=environment(), stdout=out, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(args.deadline - time.monotonic(), 1))
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        return [tuple(json.loads(line[7:])) for line in out if line.startswith("result ")]


def measure(names: list[str], group: str, round_: int, args: argparse.Namespace, truth: dict) -> None:
    """Run a group's faults once, with and without; after a run that fails the others go on in new processes."""
    left = list(names)
    while left and args.deadline - time.monotonic() > START_S:
        series = series_of(left, args.faults, backwards=round_ % 2 == 1)
        rows = session(series, WORLD if group == "ranks" else 1, args)
        print(f"{group} round {round_}: {len(rows)} of {len(series)} runs", flush=True)
        pairs = pairs_of(rows)
        for fault, (with_ms, without_ms) in pairs.items():
            truth["faults"][fault]["with_runs_ms"].append(round(with_ms, 3))
            truth["faults"][fault]["without_runs_ms"].append(round(without_ms, 3))
        save(truth, args.out)
        if len(rows) == len(series):
            return
        failed = series[len(rows)][1]
        print(f"{series[len(rows)]} did not finish", flush=True)
        left = [name for name in left if name not in pairs and name != failed]
        if failed == "none" and not rows:
            return


def record(name: str, args: argparse.Namespace) -> None:
    left_s = args.deadline - time.monotonic()
    if left_s < MIN_RECORD_S:
        print(f"no time left to record {name}", flush=True)
        return
    folder, ranks = args.out / name, WORLD if args.faults[name] in SESSIONS["ranks"] else 1
    shutil.rmtree(folder, ignore_errors=True)
    words = ["--fault", name, "--steps", args.record_steps, *(["--tiny"] if args.tiny else [])]
    try:
        job = recorded(folder, python(JOB, *words, ranks=ranks), "--steps", args.window)
        run(job, limit_s=min(MAX_RECORD_S, left_s))
    except (RuntimeError, subprocess.TimeoutExpired) as e:
        print(f"recording {name}: {e}", flush=True)


def save(truth: dict, out: Path) -> None:
    """Write truth.json with what the runs so far say."""
    for entry in truth["faults"].values():
        with_ms, without_ms = entry["with_runs_ms"], entry["without_runs_ms"]
        costs = [a - b for a, b in zip(with_ms, without_ms, strict=True)]
        entry["with_ms"] = round(statistics.fmean(with_ms), 3) if with_ms else None
        entry["without_ms"] = round(statistics.fmean(without_ms), 3) if without_ms else None
        entry["cost_ms"] = round(statistics.fmean(costs), 3) if costs else None
        entry["cost_pct"] = round(100 * entry["cost_ms"] / entry["with_ms"], 2) if costs else None
        entry["spread_ms"] = round(max(costs) - min(costs), 3) if len(costs) > 1 else None
    (out / "truth.json").write_text(json.dumps(truth, indent=1))


def table(truth: dict) -> str:
    lines = [f"{'fault':18} {'ranks':6} {'with ms':>9} {'without':>9} {'cost %':>7} {'spread ms':>9}  planted at"]
    for name, e in truth["faults"].items():
        at = ", ".join(f"{p['first']}-{p['last']} {p['function']}" for p in e["planted"])
        shown = ["-" if e[k] is None else f"{e[k]:.2f}" for k in ("with_ms", "without_ms", "cost_pct", "spread_ms")]
        where = "all" if e["ranks"] == "all" else ",".join(map(str, e["ranks"]))
        lines.append(f"{name:18} {where:6} {shown[0]:>9} {shown[1]:>9} {shown[2]:>7} {shown[3]:>9}  {at}")
    return "\n".join(lines)


# Judged


def judge(args: argparse.Namespace) -> None:
    from stepscope.errors import StepscopeError

    rows = []
    for fault, truth in json.loads((args.out / "truth.json").read_text())["faults"].items():
        try:
            rows.append(judged(fault, args.out / fault, truth, args.findings))
            print(shown(rows[-1], truth), end="\n\n", flush=True)
        except StepscopeError as error:
            print(f"{fault}  {error}\n", flush=True)
    for hit in (*HITS, None):
        names = [row["fault"] for row in rows if row["hit"] == hit]
        print(f"{hit or 'not named':10} {len(names):2} of {len(rows)}  {', '.join(names)}")
    leading = [
        row["fault"]
        for row in rows
        if row["hit"] in HITS[:3] and any(n["hit"] == row["hit"] and n["leads"] for n in row["findings"])
    ]
    print(f"leading    {len(leading):2} of {len(rows)}  {', '.join(leading)} (line, inside or felt)")
    errors = sorted(abs(row["error_pct"]) for row in rows if row["error_pct"] is not None and row["hit"])
    if errors:
        middle = statistics.median(errors)
        print(f"error of the saving where named: median {middle:.1f}, worst {errors[-1]:.1f} % of the step")
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def judged(fault: str, folder: Path, truth: dict[str, Any], count: int) -> dict[str, Any]:
    """Load a run and set its first findings beside the truth."""
    import stepscope

    analysis = stepscope.load(folder)
    step = analysis.document["step"]
    step_ms = step["unprofiled_ms"] or step["profiled_ms"]
    named: list[dict[str, Any]] = []
    for finding in analysis.findings[:count]:
        hits = [hit_of(place.file, place.line, truth) for place in finding.where]
        places = [f"{place.file}:{place.line}" if place.line else str(place.module) for place in finding.where]
        saving_ms = finding.alone_ns / 1e6
        saving = {"saving_ms": saving_ms, "saving_pct": 100 * saving_ms / step_ms}
        leads = bool(hits) and hits[0] is not None and hits[0] == closest(hits)
        about = {"id": finding.id, "title": finding.title, "places": places, "ranks": list(finding.ranks)}
        named.append({**about, **saving, "hit": closest(hits), "leads": leads})
    hit, real_pct = closest([n["hit"] for n in named]), truth["cost_pct"]
    said = next((n for n in named if n["hit"] == hit), None) if hit else (named[0] if named else None)
    error = None if real_pct is None else (said["saving_pct"] if said else 0.0) - real_pct
    return {"fault": fault, "step_ms": step_ms, "findings": named, "hit": hit, "error_pct": error}


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


def shown(row: dict[str, Any], truth: dict[str, Any]) -> str:
    """Return the lines about one fault."""
    planted = ", ".join(f"{p['first']}-{p['last']} ({p['function']})" for p in truth["planted"])
    felt = ", ".join(str(p["first"]) for p in truth["felt"]) or "-"
    ranks = "all ranks" if truth["ranks"] == "all" else f"rank {', '.join(map(str, truth['ranks']))}"
    real = "not measured" if truth["cost_ms"] is None else f"{truth['cost_ms']:.2f} ms = {truth['cost_pct']:.1f} %"
    lines = [f"{row['fault']}  step {row['step_ms']:.2f} ms, planted at {planted}, felt at {felt}, {ranks}"]
    for i, n in enumerate(row["findings"], 1):
        how = "not the fault" if n["hit"] is None else f"{n['hit']}{', leading' if n['leads'] else ', not leading'}"
        lines.append(f"  {i}. {n['id']} {n['ranks'] or ''}: {n['title']}")
        where = ", ".join(n["places"]) or "no line"
        lines.append(f"     saves {n['saving_ms']:.2f} ms = {n['saving_pct']:.1f} %, at {where}: {how}")
    error = "" if row["error_pct"] is None else f"; error of the saving {row['error_pct']:+.1f} % of the step"
    return "\n".join([*lines, f"  really saves {real}; named by: {row['hit'] or 'nothing'}{error}"])


if __name__ == "__main__":
    sys.exit(main())
