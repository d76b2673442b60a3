"""What recording costs.

    python benchmarks/overhead.py parts [--step-ms 20] [--blocks 24] [--backend nccl]    everything below, two ranks
    python benchmarks/overhead.py shapes [--seconds 5] [--shapes one,cells,...]          loops with many calls per step
    python benchmarks/overhead.py export [--rounds 2] [--device cuda]                    light mode and live metrics
    python benchmarks/overhead.py launches [--rounds 4]                                  launch times around a window
    python benchmarks/overhead.py soak [--steps 10000] [--write docs/reliability.md]     light mode over many steps

parts: two ranks train the same small DDP model (gloo; NCCL with `--backend nccl`).

    warm        CPU time that light mode adds to a step in which Python runs all the time, as it does when it launches
                kernels of a GPU: our code stays in the processor's caches
    cold        the same if forward and backward sweep the caches, as computing on the CPU does
    bottom-up   the time of every call of ours inside steps of the given length, less the meter's own; and the helper
    measured    step time with and without light mode, in alternating blocks, with a 95 % confidence interval
    shapes      recorder calls and CPU time in loops with many calls per step
    window      the profiled steps against those before them, the pause for the export, and the steps after it

shapes: light mode is installed and removed block by block in one process (off on on off); CPU time of the training
thread, bootstrap interval over pairs of neighbouring blocks. Calls of ours are the same on every machine.

export: processes take turns (none, light, export, export, light, none). With export, the endpoint is scraped ten times
a second, four more clients connect and stay silent, metrics are pushed to a collector that does not exist, and the
helper evaluates alarms.

launches: the median of thousands of launches of one tiny kernel, before, in and after a window, in plain and recorded
processes; a profiler that stays attached makes them slower.

soak: memory of ours, of both processes, and calls per step, while a trivial loop runs in light mode.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from common import (
    calls_of_ours,
    environment,
    interval,
    number,
    on_one_device,
    python,
    recorded,
    run,
    run_json,
    table,
    write_between,
)

Step = Callable[[], None]
TARGET_PCT = 0.5
ALONE = ("warm", "cold", "calls", "shapes")  # parts that one rank measures
SETTLING = 16  # steps at the start of a block: the hooks find the model and watch each of the first steps closely
SETTLING_OF_SHAPES = 11  # steps: three of search, some that are found alike
BLOCK_NS, MIN_PAIRS = 50_000_000, 4
CHOSEN = ("one", "cells", "modules", "parameters", "micro")
VOCABULARY, SWEEP_MB = 64, 16
KINDS, EXPORT_ROUNDS = ("none", "light", "export"), 150
LAUNCHES_IN_CHUNK, CHUNKS, STEPS = 20, 150, 160
WINDOW = (10, 15)  # the recorder's default
PARTS_OF_RUN = {
    "window": WINDOW,
    "16 to 19": (16, 20),
    "20 to 39": (20, 40),
    "40 to 79": (40, 80),
    "80 to 159": (80, STEPS),
}
COUNTED = 40  # steps whose calls are counted at each look
FOLLOWED_S = 0.3  # after which the next step is followed, not only timed


def main() -> int:
    args = parsed()
    if args.rank is not None:
        print(json.dumps(rank_measured(args)))
    elif args.job:
        Path(args.job).write_text(json.dumps(launch_times()))
    elif args.child:
        print(json.dumps(exported(args.child, args.device)))
    else:
        measures = {"parts": parts, "shapes": shapes, "export": export, "launches": launches, "soak": soaked}
        result = measures[args.what](args)
        if args.out and result is not None:
            Path(args.out).write_text(json.dumps(result, indent=1))
    return 0


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("parts", "shapes", "export", "launches", "soak", *PARTS))
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--blocks", type=int, default=24, help="off and on together")
    parser.add_argument("--block-steps", type=int, default=30)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shapes", default=",".join(CHOSEN), help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--seconds", type=float, default=15.0, help="for each shape")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--steps", type=int, default=10_000, help="of soak")
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--write", type=Path, metavar="PAGE", help="page with the table of soak")
    parser.add_argument("--out", help="file for the figures as JSON")
    for name in ("--folder", "--job", "--child"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


# Parts


def parts(args: argparse.Namespace) -> dict:
    """Measure every part in separate processes; caches are swept on the CPU only."""
    names = ["warm", *(["cold"] if args.backend == "gloo" else []), "calls", "shapes", "light", "window"]
    results = {part: run_ranks(part, args) for part in names}
    report = summary(results, args)
    print(parts_table(report))
    return {**report, "raw": results}


def run_ranks(part: str, args: argparse.Namespace) -> list[dict]:
    """Return what each rank measured for one part."""
    wanted = ("ranks", "step_ms", "blocks", "block_steps", "backend", "shapes", "seconds")
    options = [word for name in wanted for word in (f"--{name.replace('_', '-')}", str(getattr(args, name)))]
    with tempfile.TemporaryDirectory() as folder:
        command = python(__file__, part, "--folder", folder, *options)
        ranks = [
            subprocess.Popen(
                [*command, "--rank", str(rank)],
                stdout=subprocess.PIPE,
                text=True,
                env=environment(**(on_one_device(rank) if args.backend == "nccl" else {})),
            )
            for rank in range(1 if part in ALONE else args.ranks)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed in part {part!r}: exit codes {[rank.returncode for rank in ranks]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def rank_measured(arguments: argparse.Namespace) -> dict:
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    world_size = 1 if arguments.what in ALONE else arguments.ranks
    store = dist.FileStore(str(Path(arguments.folder) / "store"), world_size)
    if arguments.backend == "nccl":
        torch.cuda.set_device(arguments.rank % torch.cuda.device_count())
    dist.init_process_group(arguments.backend, store=store, rank=arguments.rank, world_size=world_size)
    try:
        return PARTS[arguments.what](arguments)
    finally:
        dist.destroy_process_group()


def summary(results: dict[str, list[dict]], arguments: argparse.Namespace) -> dict:
    warm, calls = results["warm"][0], results["calls"][0]
    added_us = calls["calls_us"].pop("all")
    window = results["window"]
    return {
        "step_ms": arguments.step_ms,
        "warm": {**added(warm, arguments), "calls_per_step": warm["calls_per_step"]},
        "shapes": results["shapes"][0],
        "cold": added(results["cold"][0], arguments) if "cold" in results else None,
        "bottom_up": {
            "us_per_step": added_us,
            "pct_of_step": added_us / arguments.step_ms / 10,
            "helper_process_us": calls["helper_us"],
            "calls_us": calls["calls_us"],
        },
        "measured": {
            "wall": difference([rank["blocks"] for rank in results["light"]], "ms"),
            "training_thread_cpu": difference([rank["blocks"] for rank in results["light"]], "cpu_ms"),
        },
        "window": {
            "profiled_over_before": ratio_of_medians(window, "window_ms", "before_ms"),
            "after_over_before": ratio_of_medians(window, "after_ms", "before_ms"),
            "pause_ms": max(max(rank["last_ms"]) - statistics.median(rank["before_ms"]) for rank in window),
        },
    }


def added(found: dict, arguments: argparse.Namespace) -> dict:
    us = found["on_us"] - found["off_us"]
    return {"us_per_step": us, "pct_of_step": us / arguments.step_ms / 10}


def difference(ranks: list[list[dict]], field: str) -> dict:
    """The relative cost of light mode in %: blocks of all ranks in pairs off/on that are neighbours in time."""
    pairs = []
    for blocks in ranks:
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            off, on = (second, first) if first["on"] else (first, second)
            pairs.append((on[field] - off[field]) / off[field] * 100)
    value, low, high = interval(pairs)
    off_ms = statistics.median(b[field] for blocks in ranks for b in blocks if not b["on"])
    return {"pct": value, "low_pct": low, "high_pct": high, "off_ms": off_ms, "pairs": len(pairs)}


def ratio_of_medians(ranks: list[dict], above: str, below: str) -> dict:
    """Return the ratio of medians, mean over ranks, with its bootstrap interval."""
    draw = random.Random(0)

    def ratio(pick: Callable[[list[float]], list[float]]) -> float:
        return statistics.fmean(statistics.median(pick(r[above])) / statistics.median(pick(r[below])) for r in ranks)

    drawn = sorted(ratio(lambda xs: draw.choices(xs, k=len(xs))) for _ in range(1000))
    return {"ratio": ratio(list), "low": drawn[25], "high": drawn[975]}


def parts_table(report: dict) -> str:
    warm, bottom, measured, window = (report[part] for part in ("warm", "bottom_up", "measured", "window"))
    rows = [
        f"light mode, warm: {against_target(warm, report)}; {warm['calls_per_step']:.0f} recorder calls",
        *([f"light mode, cold: {against_target(report['cold'], report)}"] if report["cold"] else []),
        f"light mode, bottom-up: {against_target(bottom, report)}; "
        f"the helper process beside it takes {bottom['helper_process_us']:.0f} us",
        *(f"  {name:<28}{us:8.2f} us" for name, us in bottom["calls_us"].items()),
        *(
            f"light mode, {name}: {s['added_us']:+.0f} us [{s['low_us']:+.0f}, {s['high_us']:+.0f}] of "
            f"{s['off_us']:.0f}; {s['calls_of_timed_step']} recorder calls, at most {s['calls_at_most']}"
            for name, s in report["shapes"].items()
        ),
        *(
            f"light mode, measured ({what}): {m['pct']:+.2f} % [{m['low_pct']:+.2f}, {m['high_pct']:+.2f}] "
            f"of {m['off_ms']:.2f} ms, {m['pairs']} pairs of blocks"
            for what, m in measured.items()
        ),
        *(
            f"window: {what} {window[key]['ratio']:.3f} [{window[key]['low']:.3f}, {window[key]['high']:.3f}]"
            for what, key in (("profiled / before", "profiled_over_before"), ("after / before", "after_over_before"))
        ),
        f"window: pause for stop and export {window['pause_ms']:.0f} ms",
    ]
    return "\n".join(rows)


def against_target(part: dict, report: dict) -> str:
    verdict = "below" if part["pct_of_step"] < TARGET_PCT else "ABOVE"
    return (
        f"{part['us_per_step']:.1f} us per step on the training thread = {part['pct_of_step']:.2f} % of "
        f"{report['step_ms']:g} ms ({verdict} the target of {TARGET_PCT} %)"
    )


# One rank


class Job:
    """A DDP model and its loop; `batch` sets how long a step takes. Batches are token ids, small enough to copy."""

    def __init__(self, *, device: str, width: int = 256, layers: int = 4, batch: int = 8, sweep_mb: int = 0) -> None:
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        self.device, self.width = device, width
        linears = [torch.nn.Linear(width, width) for _ in range(layers)]
        swept = [sweeping_module(sweep_mb)] if sweep_mb else []
        model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, width), *linears, *swept).to(device)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loader = DataLoader
        self.set_batch(batch)

    def set_batch(self, batch: int) -> None:
        """Use batches of this size from now on."""
        self.batch = batch
        self._data = torch.randint(VOCABULARY, (batch,))
        self._batches: Iterator[Any] = iter(())

    def step(self) -> None:
        """One training step as people write it."""
        try:
            batch = next(self._batches)
        except StopIteration:
            self._batches = iter(self.loader(range(100_000), batch_size=1, collate_fn=lambda _: self._data))
            batch = next(self._batches)
        loss = self.model(batch.to(self.device, non_blocking=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def wait(self) -> None:
        """Wait for the device."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    def calibrated(self, step_ms: float) -> "Job":
        """Set the batch so that a step takes about `step_ms` on the slowest rank; on a CPU, of its own time."""
        import torch.distributed as dist

        for _ in range(6):
            took_ms = self.time_ms(5, clock=time.thread_time if self.device == "cpu" else time.perf_counter)
            wanted = torch.tensor([self.batch * step_ms / took_ms])
            wanted = wanted.to(self.device)
            dist.all_reduce(wanted, op=dist.ReduceOp.MIN)
            self.set_batch(max(1, round(wanted.item())))
        return self

    def time_ms(self, steps: int, *, clock: Callable[[], float] = time.perf_counter) -> float:
        """Return the mean time of a step, by `clock`."""
        self.step()
        self.wait()
        since = clock()
        for _ in range(steps):
            self.step()
        self.wait()
        return (clock() - since) / steps * 1000


def sweeping_module(size_mb: int) -> torch.nn.Module:
    """A module that goes through so much memory in forward and in backward: the caches then hold nothing else."""
    memory = torch.zeros(size_mb << 20, dtype=torch.uint8)

    class Sweep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            memory.add_(1)
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
            memory.add_(1)
            return gradient

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Sweep.apply(x)

    return Module()


class Light:
    """Recording, taken in and out of a process completely: light mode, or with a window after `wait` recorded steps."""

    def __init__(self, folder: str, *, wait: int | None = None) -> None:
        from stepscope.record.config import RecordConfig
        from stepscope.record.session import Recorder

        window = {"light": True} if wait is None else {"wait": wait}
        self.recorder = Recorder.start(RecordConfig(out=str(Path(folder) / "run"), **window))
        self.hooks: Any = None

    def turn(self, on: bool, model: Any) -> None:
        """Put every hook in, or take every one out."""
        from stepscope.record.collectives import LiveCollectives
        from stepscope.record.hooks.install import install

        if self.hooks is not None:
            self.hooks.remove()
        self.hooks = install(lambda: self.recorder) if on else None
        self.recorder.on = on
        for sampler in self.recorder.samplers:
            if isinstance(sampler, LiveCollectives) and not on:
                sampler._tap.remove()
            elif isinstance(sampler, LiveCollectives):
                sampler._tap.install()
        if on:
            self.hooks.loop.start()

    def helper_cpu_s(self) -> float:
        """CPU seconds of the helper process so far."""
        run: Any = self.recorder._run
        fields = Path(f"/proc/{run.outbox.helper_pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def device_of(arguments: argparse.Namespace) -> str:
    return "cuda" if arguments.backend == "nccl" else "cpu"


def job_of(arguments: argparse.Namespace) -> Job:
    """The job whose steps take the given time; on a device it launches about as many kernels as real ones do."""
    on_device = arguments.backend == "nccl"
    size = {"width": 1024, "layers": 24} if on_device else {}
    return Job(device=device_of(arguments), **size).calibrated(arguments.step_ms)


def cost_when_warm(arguments: argparse.Namespace) -> dict:
    """CPU time of the training thread per step that does next to nothing, off and on; and how many calls are ours."""
    return off_and_on(arguments, Job(device=device_of(arguments), width=2, layers=1, batch=1))


def cost_when_cold(arguments: argparse.Namespace) -> dict:
    """The same of a step that goes through much memory: when our code is called, it is in no cache."""
    return off_and_on(arguments, Job(device="cpu", width=2, layers=1, batch=1, sweep_mb=SWEEP_MB))


def off_and_on(arguments: argparse.Namespace, job: Job) -> dict:
    """The fastest of many short rounds: what other processes take away from this one does not count."""
    light = Light(arguments.folder)
    times: dict[bool, list[float]] = {False: [], True: []}
    for on in (False, True) * 3:
        light.turn(on, job.model)
        for _ in range(SETTLING):
            job.step()
        times[on] += [thread_us(job, 8) for _ in range(100)]
    calls = calls_of_ours(job.step, 200)
    light.turn(False, job.model)
    light.recorder.on = True
    light.recorder.close()
    return {
        "off_us": fast_round(times[False]),
        "on_us": fast_round(times[True]),
        "calls_per_step": statistics.mean(calls),
        "calls_of_timed_step": sorted(calls)[len(calls) // 10],  # the same on every machine, loaded or not
    }


def thread_us(job: Job, steps: int) -> float:
    since = time.thread_time_ns()
    for _ in range(steps):
        job.step()
    return (time.thread_time_ns() - since) / steps / 1000


def fast_round(times: list[float]) -> float:
    return sorted(times)[len(times) // 20]


def cost_of_calls(arguments: argparse.Namespace) -> dict:
    """The time of each of our calls in steps of the given length, and of the helper process beside them."""
    job = job_of(arguments)
    own = Meter()
    with metered(own, None, job):
        for _ in range(100):
            job.step()
            own.step_over()
    light, meter = Light(arguments.folder), Meter()
    with metered(meter, light, job):
        for _ in range(SETTLING):
            job.step()
        meter.start()
        helper_s, steps = light.helper_cpu_s(), 200
        for _ in range(steps):
            job.step()
            meter.step_over()
        helper_us = (light.helper_cpu_s() - helper_s) / steps * 1e6
    light.recorder.on = True
    light.recorder.close()
    own_us = own.mean_us()
    calls_us = {name: us - own_us.get(name, 0.0) for name, us in meter.mean_us().items()}
    return {"calls_us": calls_us, "meter_us": own_us["all"], "helper_us": helper_us, "step_ms": job.time_ms(20)}


def light_in_blocks(arguments: argparse.Namespace) -> dict:
    """Step times in blocks, off and on in the order off on on off."""
    job = job_of(arguments)
    light = Light(arguments.folder)
    blocks = []
    for index in range(arguments.blocks):
        on = index % 4 in (1, 2)
        light.turn(on, job.model)
        for _ in range(SETTLING):
            job.step()
        blocks.append({"on": on, **timed_block(job, arguments.block_steps)})
    light.turn(False, job.model)
    light.recorder.on = True
    light.recorder.close()
    return {"blocks": blocks, "batch": job.batch}


def timed_block(job: Job, steps: int) -> dict:
    job.wait()
    cpu, begin, step_ms = time.thread_time_ns(), time.perf_counter(), []
    for _ in range(steps):
        since = time.perf_counter()
        job.step()
        step_ms.append((time.perf_counter() - since) * 1000)
    job.wait()
    mean_ms = (time.perf_counter() - begin) / steps * 1000
    cpu_ms = (time.thread_time_ns() - cpu) / steps / 1e6
    # On a device the host runs ahead: only the whole block has a meaning there.
    return {"ms": statistics.median(step_ms) if job.device == "cpu" else mean_ms, "cpu_ms": cpu_ms}


def around_a_window(arguments: argparse.Namespace) -> dict:
    """Step times before, in and after a profiled window, by a clock of our own, and the pause at its end."""
    from stepscope.record.config import RecordConfig
    from stepscope.record.hooks.install import install
    from stepscope.record.session import Recorder

    job = job_of(arguments)
    wait, warmup, active, after = 60, 2, 10, 60
    config = RecordConfig(out=str(Path(arguments.folder) / "run"), wait=wait, warmup=warmup, active=active)
    install(lambda: Recorder.start(config)).loop.start()
    times = [timed_block(job, 1)["ms"] for _ in range(wait + warmup + active + after)]
    Recorder.start(config).close()
    first, last = wait + warmup, wait + warmup + active
    return {"before_ms": times[10:wait], "window_ms": times[first:last], "last_ms": times[last:last + 2],
            "after_ms": times[last + 5:]}  # fmt: skip


# The meter


class Meter:
    """Time spent in our code, call by call, inside real steps: what torch calls of ours minus what that calls of torch.

    Some steps cost several times what most do (those that are followed, and those in which lines leave), so it is the
    mean that counts. A step in which the system took the processor away from the thread does not.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self.disturbed = 0
        self._now: dict[str, int] = {}
        self._switches = _switches()

    def around(self, name: str, call: Callable[..., object], *, sign: int = 1) -> object:
        """Return `call` with its time added to `name`, or taken off it."""

        def timed(*args: object, **kwargs: object) -> object:
            since = time.perf_counter_ns()
            try:
                return call(*args, **kwargs)
            finally:
                self._now[name] = self._now.get(name, 0) + sign * (time.perf_counter_ns() - since)

        return timed

    def step_over(self) -> None:
        """Begin the next step's account."""
        switches = _switches()
        if switches == self._switches:
            self.steps.append(self._now)
        else:
            self.disturbed += 1
        self._now, self._switches = {}, switches

    def start(self) -> None:
        """Forget what was measured so far."""
        self.steps, self.disturbed, self._now, self._switches = [], 0, {}, _switches()

    def mean_us(self) -> dict[str, float]:
        """Return what every name takes in a step on average, and their sum."""
        names = sorted({name for step in self.steps for name in step})
        found = {name: statistics.fmean(step.get(name, 0) for step in self.steps) / 1000 for name in names}
        return {**found, "all": sum(found.values())}


def _switches() -> int:
    """Return how often the system took the processor away from this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


@contextlib.contextmanager
def metered(meter: Meter, light: Light | None, job: Any) -> Iterator[None]:
    """Put the meter around everything of ours that torch calls; without `light` in the same places around nothing."""
    import torch.autograd.graph
    import torch.distributed as dist
    from torch.optim import optimizer as optim
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from stepscope.record.hooks.backward import GradientSync
    from stepscope.record.hooks.forward import Root

    wrapped = [
        ("data loader", _BaseDataLoaderIter, "__next__"),
        ("backward", torch.autograd.graph, "_engine_run_backward"),
        *([("collective", dist.ProcessGroup, "allreduce")] if light else []),
    ]
    originals = [(owner, attribute, vars(owner)[attribute]) for _, owner, attribute in wrapped]
    originals.append((torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward))

    def wrap(sign: int) -> None:
        for name, owner, attribute in wrapped:
            setattr(owner, attribute, meter.around(name, getattr(owner, attribute), sign=sign))

    wrap(-1)
    if light:
        light.turn(True, job.model)
    wrap(1)
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward
    handles = []
    if light:
        for name, owner, attribute in (
            ("forward", Root, "begins"),
            ("forward", Root, "ends"),
            ("gradient sync", GradientSync, "_queue"),
        ):
            originals.append((owner, attribute, getattr(owner, attribute)))
            setattr(owner, attribute, meter.around(name, getattr(owner, attribute)))
        for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
            for key in list(hooks):
                hooks[key] = meter.around("optimizer", hooks[key])
    else:
        for name, register in (
            ("forward", job.model.register_forward_pre_hook),
            ("forward", job.model.register_forward_hook),
            ("optimizer", optim.register_optimizer_step_pre_hook),
            ("optimizer", optim.register_optimizer_step_post_hook),
        ):
            handles.append(register(meter.around(name, lambda *args, **kwargs: None)))
    try:
        yield
    finally:
        if light:
            light.turn(False, job.model)
        for handle in handles:
            handle.remove()
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


# Loops with many calls per step


def shapes(args: argparse.Namespace) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        found = cost_of_shapes(folder, args.shapes.split(","), args.seconds)
    print(shapes_table(found))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    return found


def cost_of_shapes(folder: str, names: list[str], seconds: float) -> dict[str, dict]:
    """Measure each shape for about so many seconds."""
    torch.set_num_threads(1)
    light, found = Light(folder), {}
    for name in names:
        job: Any = SimpleNamespace(step=SHAPES[name](), model=None)
        until = time.monotonic() + seconds
        pairs: list[tuple[float, float]] = []
        while len(pairs) < MIN_PAIRS or time.monotonic() < until:
            order = (False, True) if len(pairs) % 2 == 0 else (True, False)
            times = {on: block_us(light, job, on=on) for on in order}
            pairs.append((times[False], times[True]))
        light.turn(True, None)
        for _ in range(SETTLING_OF_SHAPES):
            job.step()
        calls = calls_of_ours(job.step, 6)
        light.turn(False, None)
        found[name] = {**added_us(pairs), "calls_of_timed_step": min(calls), "calls_at_most": max(calls)}
        print(f"{name}: {len(pairs)} pairs", file=sys.stderr, flush=True)
    light.recorder.on = True
    light.recorder.close()
    return found


def block_us(light: Any, job: Any, *, on: bool) -> float:
    """Return the CPU time of a step in one block of them."""
    light.turn(on, None)
    for _ in range(SETTLING_OF_SHAPES if on else 1):
        job.step()
    since, steps = time.thread_time_ns(), 0
    while steps < 4 or time.thread_time_ns() - since < BLOCK_NS:
        job.step()
        steps += 1
    return (time.thread_time_ns() - since) / steps / 1000


def added_us(pairs: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the median difference of the pairs, its 95 % interval, and the step without us."""
    value, low, high = interval([on - off for off, on in pairs])
    off_us = statistics.median(off for off, _ in pairs)
    return {"off_us": off_us, "added_us": value, "low_us": low, "high_us": high, "pairs": len(pairs)}


def shapes_table(found: dict[str, dict]) -> str:
    rows = [
        f"{'loop':<12} {'step us':>9} {'added us':>9} {'95 % interval':>18} {'pairs':>6} {'calls':>6} {'at most':>8}"
    ]
    for name, s in found.items():
        interval = f"{s['low_us']:.0f} to {s['high_us']:.0f}"
        rows.append(
            f"{name:<12} {s['off_us']:>9.0f} {s['added_us']:>9.0f} {interval:>18} {s['pairs']:>6} "
            f"{s['calls_of_timed_step']:>6} {s['calls_at_most']:>8}"
        )
    return "\n".join(rows)


def sgd(*modules: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=1e-4)


def loop(loss: Callable[[], torch.Tensor], *optimizers: torch.optim.Optimizer) -> Step:
    def step() -> None:
        loss().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def plain(model: torch.nn.Module) -> Step:
    x = torch.ones(1, 2)
    return loop(lambda: model(x).square().mean(), sgd(model))


def one() -> Step:
    """Return a loop that calls a model with 2,000 modules inside once."""
    return plain(torch.nn.Sequential(*[torch.nn.Identity() for _ in range(1999)], torch.nn.Linear(2, 2)))


def cells() -> Step:
    """Return a loop with 98 calls of root modules: an LSTM cell for every token."""
    cell, embedding, head = torch.nn.LSTMCell(4, 4), torch.nn.Embedding(8, 4), torch.nn.Linear(4, 2)
    tokens = torch.randint(8, (96, 2))

    def loss() -> torch.Tensor:
        state: Any = None
        for x in embedding(tokens):
            state = cell(x, state)
        return head(state[0]).square().mean()

    return loop(loss, sgd(cell, embedding, head))


def modules() -> Step:
    """Return a loop that calls 2,000 modules itself."""
    parts, x = [torch.nn.Linear(2, 2) for _ in range(2000)], torch.ones(1, 2)
    return loop(lambda: sum(part(x) for part in parts).square().mean(), sgd(parts[0], parts[-1]))


def parameters(*, optimizers: int = 1) -> Step:
    """Return a loop with 500 parameters, of one optimizer or of one each."""
    parts = [torch.nn.Parameter(torch.ones(2)) for _ in range(500)]
    model, x, each = torch.nn.Linear(2, 2), torch.ones(1, 2), len(parts) // optimizers
    steppers = [torch.optim.SGD(parts[at : at + each], lr=1e-4) for at in range(0, len(parts), each)]
    return loop(lambda: model(x).sum() + torch.stack(parts).sum(), *steppers)


def micro(count: int = 64) -> Step:
    """Return a loop of so many micro-batches."""
    model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)

    def loss() -> torch.Tensor:
        for _ in range(count - 1):
            model(x).square().mean().backward()
        return model(x).square().mean()

    return loop(loss, sgd(model))


def hooked() -> Step:
    """Return a loop over a model with 200 modules that carry hooks of another library."""
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(199)], torch.nn.Linear(2, 2))
    for module in model.modules():
        module.register_forward_pre_hook(lambda module, args: None)
        module.register_forward_hook(lambda module, args, output: None)
    return plain(model)


SHAPES: dict[str, Callable[[], Step]] = {
    **{f.__name__: f for f in (one, cells, modules, parameters, micro, hooked)},
    "optimizers": lambda: parameters(optimizers=500),
    "micro8": lambda: micro(8),
    "micro256": lambda: micro(256),
}


# Live export


def export(args: argparse.Namespace) -> dict:
    found: dict[str, list[dict]] = {kind: [] for kind in KINDS}
    for name in (*KINDS, *reversed(KINDS)) * args.rounds:
        found[name].append(run_json(python(__file__, "export", "--child", name, "--device", args.device)))
    times = {kind: [one["step_us"] for one in found[kind]] for kind in KINDS}
    none, light, both = (statistics.median(times[kind]) for kind in KINDS)
    print(f"step unrecorded: {none:.1f} us, under light mode {light:.1f} us, with export {both:.1f} us")
    for what, added in (("light mode", light - none), ("export", both - light), ("both", both - none)):
        print(f"{what} add {added:+.1f} us = {added / 200:+.3f} % of 20 ms")
    print(f"processes of one kind differ by up to {max(max(x) - min(x) for x in times.values()):.1f} us")
    calls = {kind: sorted({count for one in found[kind] for count in one["calls"]}) for kind in KINDS[1:]}
    print(f"recorder calls per step: {calls}")
    print(f"scrapes answered: {sum(one['scrapes'] for one in found['export'])}; load average {os.getloadavg()[0]:.1f}")
    return found


def exported(kind: str, device: str) -> dict:
    """Return the training thread's time per step in one process, and how many recorder calls a timed step makes."""
    import torch.distributed as dist

    from stepscope.record.config import RecordConfig
    from stepscope.record.hooks.install import install
    from stepscope.record.session import Recorder

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo" if device == "cpu" else "nccl", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1
        )
        exports = {"metrics": f"{free_port()}", "on_alarm": 5}
        asked: dict[str, Any] = exports if kind == "export" else {}
        recorder = hooks = None
        if kind != "none":
            recorder = Recorder.start(RecordConfig(out=f"{folder}/run", light=True, **asked))
            hooks = install(lambda: recorder)
            hooks.loop.start()
        job = Job(device=device, width=2, layers=1, batch=1)
        for _ in range(40):
            job.step()
        pipe = subprocess.PIPE
        command = [sys.executable, "-c", SCRAPER, asked.get("metrics", "")]
        scraper = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) if asked else None
        times = sorted(thread_us(job, 8) for _ in range(EXPORT_ROUNDS))
        calls = calls_of_ours(job.step, 40)
        scrapes = int(scraper.communicate("")[0]) if scraper else 0
        if hooks is not None and recorder is not None:
            hooks.remove()
            recorder.close()
        dist.destroy_process_group()
    return {"step_us": statistics.mean(times[: EXPORT_ROUNDS // 10]), "calls": [min(calls)], "scrapes": scrapes}


SCRAPER = """
import socket, sys, threading
from urllib.request import urlopen
port, over, count, silent = int(sys.argv[1]), threading.Event(), 0, []
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
while not over.wait(0.1):
    try:
        silent += [socket.create_connection(("127.0.0.1", port))] if len(silent) < 4 else []
        count += len(urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read()) > 0
    except OSError:
        continue
print(count)
"""
"""scrapes until standard input ends, in a separate process: its threads would hold the training process's lock"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# Launches around a window


def launches(args: argparse.Namespace) -> None:
    rows = []
    for _ in range(args.rounds):
        for with_us in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                out = Path(folder, "launches.json")
                job = python(__file__, "launches", "--job", out)
                run(recorded(Path(folder, "run"), job) if with_us else job)
                launch_us = json.loads(out.read_text())
            before = statistics.median(launch_us[3 : WINDOW[0] - 1])
            shares = [statistics.median(launch_us[first:last]) / before for first, last in PARTS_OF_RUN.values()]
            rows.append(["recorded" if with_us else "plain", f"{before:.2f}", *(f"{share:.3f}" for share in shares)])
    print(table(["process", "launch before, us", *PARTS_OF_RUN], rows))


def launch_times() -> list[float]:
    """Train a layer; return the median launch in each step, in us."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = torch.nn.Linear(64, 64, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, one = torch.randn(32, 64, device=device), torch.zeros(1, device=device)
    launch_us = []
    for _ in range(STEPS):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        launch_us.append(median_launch_us(one))
    return launch_us


def median_launch_us(one: torch.Tensor) -> float:
    """Return the median time of a launch; the device is never so far behind that a launch has to wait for it."""
    chunks = []
    for index in range(CHUNKS):
        if index % 10 == 0 and one.is_cuda:
            torch.cuda.synchronize()
        since_ns = time.perf_counter_ns()
        for _ in range(LAUNCHES_IN_CHUNK):
            one.add_(1)
        chunks.append((time.perf_counter_ns() - since_ns) / LAUNCHES_IN_CHUNK / 1000)
    return statistics.median(chunks)


# Soak


def soaked(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        text = section(list(soak(Path(folder), steps=args.steps, looks=args.looks)))
    print(text)
    if args.write:
        write_between(args.write, "soak", text)


@dataclass(frozen=True)
class Look:
    """How things stood after some steps."""

    steps: int
    own_kb: float
    """Python memory that our files hold in the training process"""
    process_mb: float | None
    helper_mb: float | None
    calls: int
    """of ours in a step that is only timed"""


def soak(folder: Path, *, steps: int, looks: int, samples: bool = True) -> Iterator[Look]:
    """Yield `looks` looks at a loop that is recorded in light mode, at even distances."""
    from stepscope.record.config import RecordConfig
    from stepscope.record.hooks.install import install
    from stepscope.record.session import Recorder

    torch.manual_seed(0)
    step = plain(torch.nn.Linear(2, 1))
    recorder: Any = Recorder.start(RecordConfig(out=str(folder / "run"), light=True, telemetry=False, samples=samples))
    hooks = install(lambda: recorder)
    hooks.loop.start()
    tracemalloc.start()
    try:
        for look in range(1, looks + 1):
            for _ in range(steps // looks - COUNTED):
                step()
            calls = min(calls_of_ours(step, COUNTED))
            settle(step, recorder)
            helper = recorder._run.outbox.helper_pid
            yield Look(look * (steps // looks), own_kb(), resident_mb(os.getpid()), resident_mb(helper), calls)
    finally:
        tracemalloc.stop()
        hooks.remove()
        recorder.close()


def settle(step: Any, recorder: Any) -> None:
    """Let nothing wait that leaves by itself: steps until one is followed, lines for a tenth of a second."""
    time.sleep(FOLLOWED_S)
    for _ in range(3):
        step()
    recorder._log.flush()


def own_kb() -> float:
    """Return the Python memory that was allocated in our files and is still held."""
    import stepscope

    gc.collect()
    own = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(True, f"{Path(stepscope.__file__).parent}{os.sep}*")]
    )
    return sum(entry.size for entry in own.statistics("filename")) / 1024


def resident_mb(pid: int) -> float | None:
    """Return a process's resident memory, None where the system does not tell."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def section(looks: list[Look]) -> str:
    """Return the result as a section of a page."""
    head = ("steps", "own, kB", "training process, MB", "helper process, MB", "recorder calls per step")
    rows = (
        [f"{x.steps:,}", f"{x.own_kb:.0f}", number(x.process_mb, ".1f"), number(x.helper_mb, ".1f"), x.calls]
        for x in looks
    )
    return (
        f"{looks[-1].steps:,} steps of a trivial loop in light mode\n"
        f"(`python benchmarks/overhead.py soak --write docs/reliability.md`; {platform.machine()}, "
        f"Python {platform.python_version()}).\n"
        "*Own* is the memory that tracemalloc finds allocated in stepscope's files.\n\n"
        f"{table(head, rows)}"
    )


PARTS = {
    "warm": cost_when_warm,
    "cold": cost_when_cold,
    "calls": cost_of_calls,
    "light": light_in_blocks,
    "window": around_a_window,
    "shapes": lambda args: cost_of_shapes(args.folder, args.shapes.split(","), args.seconds),
}


if __name__ == "__main__":
    sys.exit(main())
