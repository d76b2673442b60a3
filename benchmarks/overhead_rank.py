"""What one rank of `overhead.py` measures: light mode taken in and out of a small DDP job, and a profiled window.

python overhead_rank.py PART --rank N ...        prints one line of JSON
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]

from overhead_meter import Meter, metered, metered_alone  # noqa: E402

if TYPE_CHECKING:
    import torch

ALONE = ("warm", "cold", "calls", "shapes")  # parts that one rank measures
SETTLING = 16  # steps at the start of a block: the hooks look for the model and watch each of the first steps closely


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--blocks", type=int, default=24)
    parser.add_argument("--block-steps", type=int, default=30)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--shapes", help="of overhead_shapes, default those of overhead_cpu")
    parser.add_argument("--shape-seconds", type=float, default=15.0)
    print(json.dumps(measured(parser.parse_args())))


def measured(arguments: argparse.Namespace) -> dict:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    world_size = 1 if arguments.part in ALONE else arguments.ranks
    store = dist.FileStore(str(Path(arguments.folder) / "store"), world_size)
    if arguments.backend == "nccl":
        torch.cuda.set_device(arguments.rank % torch.cuda.device_count())
    dist.init_process_group(arguments.backend, store=store, rank=arguments.rank, world_size=world_size)
    try:
        return PARTS[arguments.part](arguments)
    finally:
        dist.destroy_process_group()


VOCABULARY = 64
SWEEP_MB = 16


class Job:
    """A DDP model and its loop; `batch` sets how long a step takes. Batches are token ids, small enough to copy."""

    def __init__(self, *, device: str, width: int = 256, layers: int = 4, batch: int = 8, sweep_mb: int = 0) -> None:
        import torch
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
        import torch

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
        import torch

        if self.device != "cpu":
            torch.cuda.synchronize()

    def calibrated(self, step_ms: float) -> "Job":
        """Set the batch so that a step takes about `step_ms` on the slowest rank; on a CPU, of its own time."""
        import torch
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


def sweeping_module(size_mb: int) -> "torch.nn.Module":
    """A module that goes through so much memory in forward and in backward: the caches then hold nothing else."""
    import torch

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
        from stepscope.record.collectives.live import LiveCollectives
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
    calls = calls_of_ours(job, 200)
    light.turn(False, job.model)
    light.recorder.on = True
    light.recorder.close()
    return {
        "off_us": fast_round(times[False]),
        "on_us": fast_round(times[True]),
        "calls_per_step": statistics.mean(calls),
        "calls_of_timed_step": sorted(calls)[len(calls) // 10],  # the same on every machine, loaded or not
    }


def cost_of_shapes(arguments: argparse.Namespace) -> dict:
    """Per loop that calls very much: calls of ours per step, and CPU time of the training thread off and on."""
    import overhead_cpu

    names = arguments.shapes.split(",") if arguments.shapes else list(overhead_cpu.CHOSEN)
    return overhead_cpu.cost_of_shapes(arguments.folder, names, arguments.shape_seconds)


def thread_us(job: Job, steps: int) -> float:
    since = time.thread_time_ns()
    for _ in range(steps):
        job.step()
    return (time.thread_time_ns() - since) / steps / 1000


def fast_round(times: list[float]) -> float:
    return sorted(times)[len(times) // 20]


def calls_of_ours(job: Job, steps: int) -> list[int]:
    """How many functions each step calls from stepscope's files, ours and built-in ones.

    Now and then, by the clock, a step is followed instead of only timed: a slow machine has more of those. The
    files are told by the package's folder: a checkout may be named stepscope too, and have torch inside it.
    """
    import stepscope

    package, count = str(Path(stepscope.__file__).parent) + os.sep, 0
    counts: list[int] = []

    def counting(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event in ("call", "c_call") and frame.f_code.co_filename.startswith(package)

    sys.setprofile(counting)
    for _ in range(steps):
        job.step()
        counts.append(count - sum(counts))
    sys.setprofile(None)
    return counts


def cost_of_calls(arguments: argparse.Namespace) -> dict:
    """The time of each of our calls in steps of the given length, and of the helper process beside them."""
    job = job_of(arguments)
    own = Meter()
    with metered_alone(own, job):
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
    for number in range(arguments.blocks):
        on = number % 4 in (1, 2)
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


PARTS = {
    "warm": cost_when_warm,
    "cold": cost_when_cold,
    "calls": cost_of_calls,
    "light": light_in_blocks,
    "window": around_a_window,
    "shapes": cost_of_shapes,
}


if __name__ == "__main__":
    main()
