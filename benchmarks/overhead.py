"""What recording costs: light mode off and on in alternating blocks of one run, each hook on its own, the window.

    python benchmarks/overhead.py [--step-ms 20] [--blocks 24] [--out overhead.json]

Two ranks train the same small DDP model (gloo; NCCL with `--backend nccl`). Three answers:

    bottom-up   the time of every call of ours inside real steps, call by call, and the helper process beside them
    measured    step time with and without light mode, in alternating blocks, with a 95 % confidence interval
    window      the profiled steps against those before them, the pause for the export, and the steps after it
"""

import argparse
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

TARGET_PCT = 0.5
SETTLING = 60  # steps at the start of a block: the hooks look for the model and watch each of the first steps closely


def main() -> int:
    arguments = parsed()
    if arguments.as_rank is not None:
        print(json.dumps(as_rank(arguments)))
        return 0
    results = {part: run_ranks(part, arguments) for part in ("calls", "light", "window")}
    report = summary(results, arguments)
    print(table(report))
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({**report, "raw": results}, indent=1))
    return 0 if report["bottom_up"]["pct_of_step"] < TARGET_PCT else 1


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--blocks", type=int, default=24, help="off and on together")
    parser.add_argument("--block-steps", type=int, default=30)
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--as-rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def run_ranks(part: str, arguments: argparse.Namespace) -> list[dict]:
    """Return what each rank measured for one part of the benchmark."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--part", part, "--folder", folder]
        ranks = [
            subprocess.Popen(
                [*command, "--as-rank", str(rank)], stdout=subprocess.PIPE, text=True, env=environment(rank, arguments)
            )
            for rank in range(1 if part == "calls" else arguments.ranks)
        ]
        outputs = [rank.communicate(timeout=600)[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit(f"a rank failed in part {part!r}: exit codes {[rank.returncode for rank in ranks]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def environment(rank: int, arguments: argparse.Namespace) -> dict[str, str]:
    """Return a rank's environment; NCCL refuses ranks that share a device unless they claim to be on other hosts."""
    shared = {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "KINETO_LOG_LEVEL": "99",
        **(shared if arguments.backend == "nccl" else {}),
    }


# ---- in a rank


def as_rank(arguments: argparse.Namespace) -> dict:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.manual_seed(0)
    world_size = 1 if arguments.part == "calls" else arguments.ranks
    store = dist.FileStore(str(Path(arguments.folder) / "store"), world_size)
    if arguments.backend == "nccl":
        torch.cuda.set_device(arguments.as_rank % torch.cuda.device_count())
    dist.init_process_group(arguments.backend, store=store, rank=arguments.as_rank, world_size=world_size)
    try:
        return {"calls": cost_of_calls, "light": light_in_blocks, "window": around_a_window}[arguments.part](arguments)
    finally:
        dist.destroy_process_group()


class Job:
    """A DDP model and its loop; `batch` sets how long a step takes."""

    def __init__(self, *, device: str, width: int = 256, layers: int = 4, batch: int = 8) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        self.device, self.width = device, width
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)]).to(device)
        self.model = DistributedDataParallel(model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.loader = DataLoader
        self.set_batch(batch)

    def set_batch(self, batch: int) -> None:
        """Use batches of this size from now on."""
        import torch

        self.batch = batch
        self._data = torch.randn(batch, self.width)
        self._batches = iter(())

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


class Light:
    """Light mode, taken in and out of a process completely."""

    def __init__(self, folder: str) -> None:
        from stepscope.record.config import RecordConfig
        from stepscope.record.session import Recorder

        self.recorder = Recorder.start(RecordConfig(out=str(Path(folder) / "run"), light=True))
        self.hooks = None

    def turn(self, on: bool, model: object) -> None:
        """Put every hook in, or take every one out."""
        from stepscope.record.hooks.install import install
        from stepscope.record.live_collectives import LiveCollectives

        if self.hooks is not None:
            self.hooks.remove()
            for module in model.modules():
                for hooks in (module._forward_pre_hooks, module._forward_hooks):
                    for key in [k for k, hook in hooks.items() if "stepscope" in type(hook).__module__]:
                        del hooks[key]
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
        fields = Path(f"/proc/{self.recorder._run.outbox.helper_pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def device_of(arguments: argparse.Namespace) -> str:
    return "cuda" if arguments.backend == "nccl" else "cpu"


class Meter:
    """Time spent in our code, call by call, inside real steps: what torch calls of ours minus what that calls of torch.

    Medians over the steps: a step in which the system took the processor away does not count.
    """

    def __init__(self) -> None:
        self.steps: list[dict[str, int]] = []
        self._now: dict[str, int] = {}

    def around(self, name: str, call: object, *, sign: int = 1) -> object:
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
        self.steps.append(self._now)
        self._now = {}

    def medians_us(self) -> dict[str, float]:
        """Return the median per step of every name, and of their sum, without what the meter itself takes."""
        own_us = meter_us()
        names = sorted({name for step in self.steps for name in step})
        found = {n: statistics.median(step.get(n, 0) for step in self.steps) / 1000 - own_us for n in names}
        return {**found, "all": sum(found.values())}


def meter_us() -> float:
    """What the meter adds to each time, in microseconds."""
    meter = Meter()
    nothing = meter.around("nothing", lambda: None)
    for _ in range(2000):
        nothing()
        meter.step_over()
    return statistics.median(step["nothing"] for step in meter.steps) / 1000


def cost_of_calls(arguments: argparse.Namespace) -> dict:
    """The time of each of our calls in steps of the given length, and of the helper process beside them."""
    job = Job(device=device_of(arguments)).calibrated(arguments.step_ms)
    light, meter = Light(arguments.folder), Meter()
    with metered(meter, light, job):
        for _ in range(20):
            job.step()
        meter.steps.clear()
        helper_s, steps = light.helper_cpu_s(), 150
        for _ in range(steps):
            job.step()
            meter.step_over()
        helper_us = (light.helper_cpu_s() - helper_s) / steps * 1e6
    light.recorder.on = True
    light.recorder.close()
    return {"calls_us": meter.medians_us(), "helper_us": helper_us, "step_ms": job.time_ms(20)}


@contextlib.contextmanager
def metered(meter: Meter, light: Light, job: Job) -> Iterator[None]:
    """Light mode with the meter around everything of ours that torch calls."""
    import torch.autograd.graph
    import torch.distributed as dist
    from torch.optim import optimizer as optim
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from stepscope.record.hooks.gradient_sync import GradientSync
    from stepscope.record.hooks.root_hooks import AfterForward, BeforeForward

    wrapped = [
        ("data loader", _BaseDataLoaderIter, "__next__"),
        ("backward", torch.autograd.graph, "_engine_run_backward"),
        ("collective", dist.ProcessGroup, "allreduce"),
    ]
    originals = [(owner, attribute, vars(owner)[attribute]) for _, owner, attribute in wrapped]
    originals.append((torch.autograd, "_engine_run_backward", torch.autograd._engine_run_backward))
    for name, owner, attribute in wrapped:
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute), sign=-1))
    light.turn(True, job.model)
    for name, owner, attribute in wrapped:
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute)))
    torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward
    for name, owner, attribute in (
        ("forward", BeforeForward, "__call__"),
        ("forward", AfterForward, "__call__"),
        ("gradient sync", GradientSync, "_queue"),
    ):
        originals.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, meter.around(name, getattr(owner, attribute)))
    for hooks in (optim._global_optimizer_pre_hooks, optim._global_optimizer_post_hooks):
        for key in list(hooks):
            hooks[key] = meter.around("optimizer", hooks[key])
    try:
        yield
    finally:
        light.turn(False, job.model)
        for owner, attribute, original in originals:
            setattr(owner, attribute, original)


def light_in_blocks(arguments: argparse.Namespace) -> dict:
    """Step times in blocks, off and on in the order off on on off."""
    job = Job(device=device_of(arguments)).calibrated(arguments.step_ms)
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

    job = Job(device=device_of(arguments)).calibrated(arguments.step_ms)
    wait, warmup, active, after = 60, 2, 10, 60
    config = RecordConfig(out=str(Path(arguments.folder) / "run"), wait=wait, warmup=warmup, active=active)
    install(lambda: Recorder.start(config)).loop.start()
    times = [timed_block(job, 1)["ms"] for _ in range(wait + warmup + active + after)]
    Recorder.start(config).close()
    first, last = wait + warmup, wait + warmup + active
    return {"before_ms": times[10:wait], "window_ms": times[first:last], "last_ms": times[last:last + 2],
            "after_ms": times[last + 5:]}  # fmt: skip


# ---- what it means


def summary(results: dict[str, list[dict]], arguments: argparse.Namespace) -> dict:
    calls = results["calls"][0]
    added_us = calls["calls_us"].pop("all")
    window = results["window"]
    return {
        "step_ms": arguments.step_ms,
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


def difference(ranks: list[list[dict]], field: str) -> dict:
    """The relative cost of light mode in %: blocks of all ranks in pairs off/on that are neighbours in time."""
    pairs = []
    for blocks in ranks:
        for first, second in zip(blocks[::2], blocks[1::2], strict=True):
            off, on = (second, first) if first["on"] else (first, second)
            pairs.append((on[field] - off[field]) / off[field] * 100)
    low, high = interval(pairs)
    off_ms = statistics.median(b[field] for blocks in ranks for b in blocks if not b["on"])
    return {"pct": statistics.median(pairs), "low_pct": low, "high_pct": high, "off_ms": off_ms, "pairs": len(pairs)}


def ratio_of_medians(ranks: list[dict], above: str, below: str) -> dict:
    samples = [[rank[above], rank[below]] for rank in ranks]
    draw = random.Random(0)

    def ratio(resampled: bool) -> float:
        pick = (lambda xs: draw.choices(xs, k=len(xs))) if resampled else (lambda xs: xs)
        return statistics.fmean(statistics.median(pick(a)) / statistics.median(pick(b)) for a, b in samples)

    drawn = sorted(ratio(True) for _ in range(1000))
    return {"ratio": ratio(False), "low": drawn[25], "high": drawn[975]}


def interval(values: list[float]) -> tuple[float, float]:
    """The 95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1950]


def table(report: dict) -> str:
    bottom, measured, window = report["bottom_up"], report["measured"], report["window"]
    verdict = "below" if bottom["pct_of_step"] < TARGET_PCT else "ABOVE"
    rows = [
        f"light mode, bottom-up: {bottom['us_per_step']:.1f} us per step on the training thread = "
        f"{bottom['pct_of_step']:.2f} % of {report['step_ms']:g} ms ({verdict} the target of {TARGET_PCT} %); "
        f"the helper process beside it takes {bottom['helper_process_us']:.0f} us",
        *(f"  {name:<28}{us:8.2f} us" for name, us in bottom["calls_us"].items()),
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


if __name__ == "__main__":
    sys.exit(main())
