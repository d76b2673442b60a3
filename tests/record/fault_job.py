"""Small DDP jobs on gloo that misbehave on request, recorded and not, started from one process that has torch ready.

    python fault_job.py WORK_FOLDER '[{"name": ..., "profile": {...}, "faults": {"5": "raise_error"}}, ...]'

Each scenario is a job of its own: its ranks are forked, train the same model on the same data, and leave through the
interpreter's normal exit. `results.json` then holds, per scenario and rank, the exit status, what was written to
stderr, and the losses of every step as exact hexadecimal numbers.
"""

import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import stepscope
import stepscope.record.profile
from stepscope.record import session

WIDTH, BATCH, STEPS = 32, 8, 12
# Steps 0-2 timed, 3 warm-up, 4-6 recorded, 7-11 timed again.
WINDOW = {"wait": 3, "warmup": 1, "active": 3, "others_grace_s": 10.0, "other_ranks_wait_s": 5.0}


def main() -> None:
    work, scenarios = Path(sys.argv[1]), json.loads(sys.argv[2])
    results = {}
    gc.freeze()  # ranks share these objects: without it each one walks and copies all of them as it leaves
    for together in scenarios:
        jobs: list[dict[str, Any]] = []
        for scenario in together if isinstance(together, list) else [together]:
            job = start(scenario, work)
            if job is None:
                return  # a rank: it has trained and leaves through the interpreter's exit
            jobs.append(job)
        for job in jobs:
            results[job["name"]] = [outcome(work, job["name"], rank, pid) for rank, pid in enumerate(job["pids"])]
        (work / "results.json").write_text(json.dumps(results))


def start(scenario: dict[str, Any], work: Path) -> dict[str, Any] | None:
    """Return the job's processes, or None in one of them once it has trained."""
    port, pids = free_port(), []
    for rank in range(scenario.get("ranks", 2)):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(scenario.get("ranks", 2)), LOCAL_RANK=str(rank))
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            os.environ.update(scenario.get("env", {}))
            errors = os.open(work / f"{scenario['name']}.{rank}.err", os.O_WRONLY | os.O_CREAT)
            os.dup2(errors, 2)
            train(scenario, rank, work)
            return None
        pids.append(pid)
    return {"name": scenario["name"], "pids": pids}


def outcome(work: Path, name: str, rank: int, pid: int) -> dict[str, Any]:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    losses = work / f"{name}.{rank}.losses"
    return {
        "exit": status,
        "stderr": (work / f"{name}.{rank}.err").read_text(errors="replace"),
        "losses": json.loads(losses.read_text()) if losses.exists() else [],
        "notes": json.loads((work / f"{name}.{rank}.notes").read_text())
        if (work / f"{name}.{rank}.notes").exists()
        else {},
    }


def train(scenario: dict[str, Any], rank: int, work: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(WIDTH, 1)
    )
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    torch.manual_seed(100 + rank)
    batches = loaded(scenario)
    faults = Faults(scenario, rank, work)
    faults.before()
    losses: list[str] = []
    with recording(scenario, work) as recorder:
        faults.recorder = recorder
        if recorder is not None:
            recorder.note(model=ddp, optimizer=optimizer, samples_per_step=BATCH)
        for step in range(STEPS):
            with region(recorder, "data_loading"):
                batch = next(batches) if batches else torch.randn(BATCH, WIDTH)
            optimizer.zero_grad()
            with region(recorder, "forward_pass"):
                loss = ddp(batch).pow(2).mean()
                faults.at(step)
            with region(recorder, "backward_pass"):
                loss.backward()
            with region(recorder, "optimizer_step"):
                optimizer.step()
            losses.append(loss.item().hex())
            (work / f"{scenario['name']}.{rank}.losses").write_text(json.dumps(losses))
            if recorder is not None and faults.steps(step):
                recorder.step()
    faults.after()
    dist.destroy_process_group()


def recording(scenario: dict[str, Any], work: Path) -> Any:
    if scenario.get("profile") is None:
        return nullcontext()
    return stepscope.profile(**{"out": work / scenario["name"], **WINDOW, **scenario["profile"]})


def region(recorder: Any, name: str) -> Any:
    return nullcontext() if recorder is None else recorder.region(name)


def loaded(scenario: dict[str, Any]) -> Any:
    if not scenario.get("workers"):
        return None
    data = [torch.full((WIDTH,), i / 100) for i in range(BATCH * STEPS)]
    return iter(DataLoader(data, batch_size=BATCH, num_workers=2, multiprocessing_context="fork"))


def open_run() -> Any:
    """Return the run that is being recorded, whatever it holds inside."""
    recorder = session.current()
    assert recorder is not None
    return recorder._run


class Faults:
    """What goes wrong in this rank, and when."""

    def __init__(self, scenario: dict[str, Any], rank: int, work: Path) -> None:
        self.scenario, self.rank, self.work = scenario, rank, work
        self.mine = rank in scenario.get("on", [0, 1, 2, 3])
        self.planned = scenario.get("faults", {}) if self.mine else {}
        self.recorder: Any = None
        self.user_profiler: Any = None
        self.notes: dict[str, Any] = {}
        self.ballast: Any = None

    def before(self) -> None:
        self._do(self.planned.get("before"))

    def at(self, step: int) -> None:
        if step == 1 and self.recorder is not None:
            _ = self.recorder.run_folder  # a real step is long enough for the ranks to agree on it
        self._do(self.planned.get(str(step)))

    def after(self) -> None:
        self._do(self.planned.get("after"))
        (self.work / f"{self.scenario['name']}.{self.rank}.notes").write_text(json.dumps(self.notes))

    def steps(self, step: int) -> bool:
        """Return whether this rank calls `step()`; a rank may skip the window or never call it."""
        return not (self.mine and step >= self.scenario.get("no_step_from", STEPS))

    def _do(self, what: str | None) -> None:
        if what is not None:
            getattr(self, what)()

    def start_profiler(self) -> None:
        self.user_profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        self.user_profiler.start()

    def stop_profiler(self) -> None:
        self.user_profiler.stop()
        path = self.work / f"{self.scenario['name']}.{self.rank}.user.json"
        self.user_profiler.export_chrome_trace(str(path))
        self.notes["user_events"] = len(json.loads(path.read_text())["traceEvents"])

    def break_start(self) -> None:
        torch.profiler._KinetoProfile.start_trace = failing("start")

    def break_stop(self) -> None:
        torch.profiler._KinetoProfile.stop_trace = failing("stop")

    def break_export(self) -> None:
        torch.profiler._KinetoProfile.export_chrome_trace = failing("export")

    def remove_scratch(self) -> None:
        for path in open_run().scratch.iterdir():
            path.unlink()
        open_run().scratch.rmdir()

    def fill_disk(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def wait_for_folder(self) -> None:
        open_run().settled.wait()

    def stop_first_helper(self) -> None:
        if self.rank == 0:
            self.notes["helper"] = open_run().outbox.helper_pid
            os.kill(self.notes["helper"], signal.SIGSTOP)

    def resume_first_helper(self) -> None:
        if self.rank == 0:
            os.kill(self.notes["helper"], signal.SIGCONT)

    def handle_sigterm(self) -> None:
        def handler(number: int, frame: Any) -> None:
            (self.work / f"{self.scenario['name']}.{self.rank}.handled").write_text("yes")
            os._exit(77)

        signal.signal(signal.SIGTERM, handler)

    def sigterm(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    def sigint(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)

    def sigkill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def sigkill_while_exporting(self) -> None:
        original = torch.profiler._KinetoProfile.export_chrome_trace

        def export(profiler: Any, path: str) -> None:
            threading.Timer(0.001, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
            original(profiler, path)
            time.sleep(5)

        torch.profiler._KinetoProfile.export_chrome_trace = export

    def raise_error(self) -> None:
        raise ValueError("planted")

    def sys_exit(self) -> None:
        sys.exit(3)

    def hard_exit(self) -> None:
        os._exit(4)

    def flood(self) -> None:
        for _ in range(150_000):
            self.ballast = torch.empty(1)

    def hog_memory(self) -> None:
        self.ballast = torch.ones(30_000_000)
        time.sleep(0.1)
        with region(self.recorder, "hog"):
            pass

    def dawdle(self) -> None:
        time.sleep(0.5)
        with region(self.recorder, "dawdle"):
            pass

    def fork(self) -> None:
        pid = os.fork()
        if pid == 0:
            self.recorder.step()
            with self.recorder.region("forward_pass"):
                pass
            self.recorder._recorder.close()  # as at exit, where the parent's recorder must keep still
            os._exit(0)  # gloo's threads are not in this process: a normal exit would wait for them
        self.notes["child"] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def clock_back(self) -> None:
        real = time.time_ns
        time.time_ns = lambda: real() - 3_600_000_000_000

    def strict_umask(self) -> None:
        os.umask(0o077)

    def no_kineto(self) -> None:
        torch.profiler.kineto_available = lambda: False


def failing(what: str) -> Any:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError(f"planted at {what}")

    return fail


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


if __name__ == "__main__":
    main()
