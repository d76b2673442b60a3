"""What does each fault of blind_job.py really cost? Time it with and without, then record it once.

    PYTHONPATH=src python benchmarks/blind_truth.py OUT --seconds 540          # one GPU; four ranks share it
    PYTHONPATH=src python benchmarks/blind_truth.py OUT --tiny --steps 30      # no GPU

OUT/truth.json has, for each fault, the step with and without it; OUT/NAME is its recording. Plain runs of one job
follow each other in the same processes (none, fault, none, fault, none), and each faulty run is compared with its two
neighbours; this is done twice, in fresh processes, before and after the recordings. `--only a,b` measures these alone
and keeps what truth.json knows of the others.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

JOB = Path(__file__).with_name("blind_job.py")
WORLD = 4
SESSIONS = {"lm": ("lm",), "vision": ("vision",), "ranks": ("ddp", "fsdp")}
MAX_SILENT_S = 60.0  # a step block takes seconds; a job that says nothing for so long hangs
START_S = {"lm": 20.0, "vision": 20.0, "ranks": 40.0}  # the least a session needs to be worth starting
MAX_RECORD_S = 120.0
MIN_RECORD_S = 25.0
PACK_S = 12.0
MAX_PACK_BYTES = 14 << 20
MAX_PACKS = 4
ROUNDS = 2


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


class Deadline:
    """The time that is left."""

    def __init__(self, seconds: float) -> None:
        self.began, self.seconds = time.monotonic(), seconds

    def left_s(self) -> float:
        """Return the seconds left."""
        return self.seconds - (time.monotonic() - self.began)

    def say(self, text: str) -> None:
        """Print a line with the time since the start."""
        print(f"[{time.monotonic() - self.began:5.0f} s] {text}", flush=True)


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
    """Inside a session's process (one of them per rank): run the jobs one after the other and print a line for each."""
    import gc

    import blind_job
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if "RANK" in os.environ:
        blind_job.join_ranks(device)
    machine = {"torch": torch.__version__, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"}
    for job, fault in series:
        print(f"begin {job} {fault}", flush=True)
        clock = blind_job.train(job, fault, steps, tiny, device)
        row = {"job": job, "fault": fault, "step_ms": clock.median_ms(), "blocks_ms": clock.blocks_ms}
        print("result " + json.dumps({**row, "losses": clock.printed, "machine": machine}), flush=True)
        del clock
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    os._exit(0)  # the group's teardown takes seconds and measures nothing


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def session(
    series: list[tuple[str, str]], ranks: int, args: argparse.Namespace, log: Path, limit_s: float
) -> list[dict]:
    """Run a series in fresh processes; return the rows that rank 0 printed before the end, a failure or the limit."""
    code = json.dumps(series)
    command = [sys.executable, __file__, str(args.out), "--series", code, "--steps", str(args.steps)]
    command += ["--tiny"] if args.tiny else []
    port = str(free_port())
    started = []
    for rank in range(ranks):
        env = dict(os.environ, PYTHONUNBUFFERED="1")
        if ranks > 1:
            env |= {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "LOCAL_WORLD_SIZE": str(ranks),
            }
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", **args.rank_env}
        with log.with_suffix(f".rank{rank}.log").open("w") as out:
            started.append(
                subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
            )
    said = log.with_suffix(".rank0.log")
    end = time.monotonic() + limit_s
    stalled, size = time.monotonic() + MAX_SILENT_S, 0
    while (
        min(end, stalled) > time.monotonic()
        and any(p.poll() is None for p in started)
        and not any(p.poll() for p in started)
    ):
        time.sleep(0.2)
        if said.stat().st_size > size:
            stalled, size = time.monotonic() + MAX_SILENT_S, said.stat().st_size
    for process in started:
        stop(process)
    text = said.read_text()
    return [json.loads(line[7:]) for line in text.splitlines() if line.startswith("result ")]


def stop(process: subprocess.Popen) -> None:
    """End a process that we started, with its own children."""
    with contextlib.suppress(ProcessLookupError):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def measure(
    names: list[str], group: str, round_: int, args: argparse.Namespace, deadline: Deadline, truth: dict
) -> None:
    """Run a group's faults once, with and without; after a run that fails the others go on in new processes."""
    ranks = WORLD if group == "ranks" else 1
    left = list(names)
    while left and deadline.left_s() > START_S[group]:
        series = series_of(left, args.faults, backwards=round_ % 2 == 1)
        began = time.monotonic()
        log = args.out / "logs" / f"{group}-{round_}-{len(left)}"
        rows = session(series, ranks, args, log, deadline.left_s() - PACK_S)
        deadline.say(f"{group} round {round_}: {len(rows)} of {len(series)} runs in {time.monotonic() - began:.0f} s")
        pairs = pairs_of([(r["job"], r["fault"], r["step_ms"]) for r in rows])
        truth["machine"] = rows[0]["machine"] if rows else truth.get("machine")
        plain = {r["job"]: r["losses"] for r in rows if r["fault"] == "none"}
        for row in rows:
            if row["fault"] in pairs:
                entry = truth["faults"][row["fault"]]
                entry["with_runs_ms"].append(round(pairs[row["fault"]][0], 3))
                entry["without_runs_ms"].append(round(pairs[row["fault"]][1], 3))
                entry["loss_difference"] = max(
                    abs(a - b) for a, b in zip(row["losses"], plain[row["job"]], strict=True)
                )
                entry["last_loss"] = row["losses"][-1]
        save(truth, args.out)
        if len(rows) == len(series):
            return
        failed = series[len(rows)][1]
        errors = [p.read_text()[-600:] for p in sorted(log.parent.glob(f"{log.name}.rank*.log"))]
        deadline.say(f"{series[len(rows)]} did not finish: {errors[0]}")
        truth["failures"].append({"run": series[len(rows)], "round": round_, "log_ends": errors})
        left = [name for name in left if name not in pairs and name != failed]
        if failed == "none" and not rows:
            return


def record(name: str, args: argparse.Namespace, deadline: Deadline, truth: dict) -> None:
    job = args.faults[name]
    folder = args.out / name
    shutil.rmtree(folder, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "record",
        "--out",
        str(folder),
        "--steps",
        args.window,
        "--",
        sys.executable,
    ]
    env = dict(os.environ, PYTHONUNBUFFERED="1")
    if job in SESSIONS["ranks"]:
        command += ["-m", "torch.distributed.run", f"--nproc-per-node={WORLD}", f"--master-port={free_port()}"]
        env |= args.rank_env
    command += [
        str(JOB),
        "--job",
        job,
        "--fault",
        name,
        "--steps",
        str(args.record_steps),
        *(["--tiny"] if args.tiny else []),
    ]
    log = args.out / "logs" / f"record-{name}.log"
    began = time.monotonic()
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    try:
        code: int | None = process.wait(max(min(MAX_RECORD_S, deadline.left_s() - PACK_S), 1))
    except subprocess.TimeoutExpired:
        code = None
    stop(process)
    size = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())
    median = [float(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("median_step_ms ")]
    took_s = round(time.monotonic() - began, 1)
    recorded = {"exit": code, "bytes": size, "seconds": took_s, "median_step_ms": median[-1] if median else None}
    if code != 0:
        recorded["log_ends"] = log.read_text()[-1500:]
    truth["faults"][name]["recorded"] = recorded
    deadline.say(f"recorded {name}: exit {code}, {size / 2**20:.2f} MiB, {took_s} s")
    save(truth, args.out)


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


def pack(names: list[str], out: Path, to: Path) -> None:
    """Put the recordings into a few archives, smallest first, none too large; truth.json and the logs too."""
    to.mkdir(parents=True, exist_ok=True)
    shutil.copy(out / "truth.json", to / "truth.json")
    with tarfile.open(to / "logs.tar.gz", "w:gz") as archive:
        archive.add(out / "logs", "logs")
    sized = sorted(
        (sum(p.stat().st_size for p in (out / n).rglob("*") if p.is_file()), n) for n in names if (out / n).is_dir()
    )
    packs: list[list[str]] = [[]]
    full = 0
    for size, name in sized:
        if packs[-1] and full + size > MAX_PACK_BYTES:
            packs.append([])
            full = 0
        packs[-1].append(name)
        full += size
    for i, group in enumerate(packs[:MAX_PACKS]):
        with tarfile.open(to / f"runs-{i + 1}.tar.gz", "w:gz", compresslevel=6) as archive:
            for name in group:
                archive.add(out / name, name)
    for name in (n for group in packs[MAX_PACKS:] for n in group):
        print(f"left out of the archives: {name}", flush=True)


@contextlib.contextmanager
def shared_device(on: bool) -> Iterator[dict[str, str]]:
    """Let four ranks run on one device at the same time; yield the environment that they need."""
    control = shutil.which("nvidia-cuda-mps-control")
    env = {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    if not on or control is None:
        yield env
        return
    with tempfile.TemporaryDirectory() as folder:
        env |= {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([control, "-d"], timeout=30, check=False, env=dict(os.environ, **env))
        try:
            yield env
        finally:
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [control], input="quit\n", text=True, timeout=15, check=False, env=dict(os.environ, **env)
                )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--only", default="", help="names of faults, with commas")
    parser.add_argument("--steps", type=int, default=40, help="of a plain run")
    parser.add_argument("--record-steps", type=int, default=30)
    parser.add_argument("--window", default="12:15", help="the profiled steps, as for stepscope record")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--no-record", action="store_true")
    parser.add_argument("--pack", type=Path, help="a folder for truth.json and archives of the recordings")
    parser.add_argument("--series", help=argparse.SUPPRESS)
    return parser.parse_args()


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


def begun_truth(args: argparse.Namespace, names: list[str], ranks: dict[str, list[int]], source: str) -> dict:
    """Return truth.json as it is, with empty entries for the faults to be measured."""
    path = args.out / "truth.json"
    truth = json.loads(path.read_text()) if path.exists() else {"faults": {}}
    truth["failures"] = []
    places = planted_places(source)
    for name in names:
        calls = called_functions(source, places[name]["planted"])
        entry = {"job": args.faults[name], "ranks": ranks.get(name, "all"), "steps": args.steps, "tiny": args.tiny}
        entry |= {**places[name], "calls": calls, "with_runs_ms": [], "without_runs_ms": [], "recorded": None}
        truth["faults"][name] = entry
    return truth


def measure_and_record(names: list[str], args: argparse.Namespace, deadline: Deadline, truth: dict) -> None:
    """Time every fault, record every fault, then time them again in the other order."""
    for round_ in range(args.rounds):
        for group, jobs in SESSIONS.items():
            measure([n for n in names if args.faults[n] in jobs], group, round_, args, deadline, truth)
        for name in names if round_ == 0 and not args.no_record else ():
            if deadline.left_s() > MIN_RECORD_S + PACK_S:
                record(name, args, deadline, truth)
            else:
                deadline.say(f"no time left to record {name}")


def main() -> int:
    args = parsed()
    if args.series:
        run_series([(job, fault) for job, fault in json.loads(args.series)], args.steps, args.tiny)
    deadline = Deadline(args.seconds)
    source = JOB.read_text()
    args.faults, ranks = fault_table(source)
    names = args.only.split(",") if args.only else list(args.faults)
    unknown = sorted(set(names) - set(args.faults))
    if unknown:
        raise SystemExit(f"no such fault: {', '.join(unknown)}; the faults are {', '.join(args.faults)}")
    args.out = args.out.resolve()
    (args.out / "logs").mkdir(parents=True, exist_ok=True)
    truth = begun_truth(args, names, ranks, source)
    try:
        with shared_device(not args.tiny) as args.rank_env:
            measure_and_record(names, args, deadline, truth)
    finally:
        save(truth, args.out)
        print(table(truth), flush=True)
        if args.pack:
            pack(names, args.out, args.pack)
    deadline.say("done")
    return 0 if not truth["failures"] else 1


if __name__ == "__main__":
    sys.exit(main())
