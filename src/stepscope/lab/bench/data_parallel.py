"""The jobs that compare data-parallel implementations, search a bucket size, profile one and slow one rank down.

settings   {"workload": {...}, "items": [{"variant": {"name", "implementation", "options"}, "run": 0}],
            "warmup_steps", "steps", "grad_accum", "trace_steps", "slow_rank"}
compare    {"what": "begin", "variant", "run"}           before each run; run null: its trace
           {"what": "samples", "variant", "run", ...}, of all ranks        {"what": "agreement", "variant", ...}
           {"what": "size", "variant", "parameters"}               {"what": "repeated", ...}: the reference again
           {"what": "trace", "variant", "run": null, "paths"}      {"what": "log", "variant", "run", "folder"}
buckets    {"what": "round", "sizes_mb", "times_ms"}     {"what": "found", "best_mb", "tried_mb", "same_as"}
profile    {"what": "epochs", "epochs"}                  {"what": "throughput", ...}
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.profiler import profile, record_function, schedule

from stepscope.contract.operations import WORKLOAD_DEFAULTS
from stepscope.contract.run_folder import atomic_write
from stepscope.contract.step_line import GRADIENT_SYNC
from stepscope.lab.bench.config import WorkloadSpec
from stepscope.lab.bench.implementations import Tensors, partition, trainable
from stepscope.lab.bench.measure import (
    activities,
    export_trace,
    job_samples,
    measure,
    record_steps,
    wait_for_device,
)
from stepscope.lab.bench.rank import Bench, gathered
from stepscope.lab.bench.strategies import DEFAULT_MB, SIZES_MB, search
from stepscope.lab.bench.training import Training, clear_memory, new_training
from stepscope.lab.bench.workloads import workload
from stepscope.record.profile import profile as step_log, region

_WIDE = (1e-2, 5e-2, 1e-2)
# relative errors of gradient, weights and loss; the optimizer's first steps amplify rounding in the weights
_TOLERANCES = {"fp32": (1e-6, 1e-3, 1e-4), "tf32": _WIDE, "fp16": _WIDE, "bf16": _WIDE}
_TURNS = 3
_TOP_OPERATORS = 20


class Outcome(NamedTuple):
    """Gradients of the first step, weights after all steps, losses of the measured ones, number of steps."""

    gradients: Tensors | None
    weights: Tensors
    losses: Sequence[float]
    steps: int


def compare(bench: Bench, settings: dict[str, Any]) -> None:
    """Measure the items in their order on this rank, or record a trace of them."""
    reference: list[Outcome] = []
    for item in settings["items"]:
        variant, run = item["variant"], item["run"]
        bench.emit(what="begin", variant=variant["name"], run=run)
        clear_memory(bench)
        if run is None:
            _record_trace(bench, settings, variant)
            continue
        measured = _measure_late if "delay_ms" in variant else _measure_run
        samples = measured(bench, settings, variant, run, reference)
        bench.emit(what="samples", variant=variant["name"], run=run, **job_samples(gathered(samples)))


def _measure_run(
    bench: Bench, settings: dict[str, Any], variant: dict[str, Any], run: int, reference: list[Outcome]
) -> dict[str, Any]:
    first = variant["name"] == settings["items"][0]["variant"]["name"]
    check = {0: "agreement", 1: "repeated" if first else None}.get(run) if settings["checked"] else None
    training = new_training(bench, settings, variant)
    gradients: list[Tensors | None] = []
    if check:
        training.step(lambda: gradients.append(_copied(training.parallel.gradients())))
    samples = measure(
        training.step,
        warmup_steps=max(int(settings["warmup_steps"]) - bool(check), 0),  # taking the gradients was one of them
        steps=int(settings["steps"]),
        device=bench.device,
        fed=training.fed,
    )
    if check:
        bench.emit(what="size", variant=variant["name"], parameters=_size(training.parallel.model))
        weights = _copied(training.parallel.weights()) or {}
        if bench.rank == 0:
            found = Outcome(gradients[0], weights, samples["losses"], training.number)
            reference.append(found)
            judged = agreement(found, reference[0], precision=settings["workload"].get("precision", "fp32"))
            bench.emit(what=check, variant=variant["name"], **judged)
    return samples


def _size(model: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _copied(tensors: Tensors | None) -> Tensors | None:
    return None if tensors is None else {name: t.detach().float().cpu().clone() for name, t in tensors.items()}


def agreement(found: Outcome, reference: Outcome, *, precision: str) -> dict[str, Any]:
    """Return how far two outcomes of the same training agree, by the tolerances of its precision.

    Relative errors: |a - b| / |b| in the Euclidean norm over all parameters, and the largest of any step's loss.
    Summing the same numbers in another order is the only difference that is allowed: with two ranks a + b = b + a, so
    everything is equal bit by bit on a CPU; with more, rounding differs and grows with the steps. Kernels of a device
    that add in no fixed order differ from run to run; the reference measured twice shows how much.
    """
    gradient_error = None
    if found.gradients is not None and reference.gradients is not None:
        gradient_error = _relative_error(found.gradients, reference.gradients)
    weight_error = _relative_error(found.weights, reference.weights)
    pairs = zip(found.losses, reference.losses, strict=False)
    loss_error = max((abs(a - b) / abs(b) if b else abs(a) for a, b in pairs), default=0.0)
    errors = (gradient_error or 0.0, weight_error, loss_error)
    return {
        "steps": reference.steps,
        "gradient_error": gradient_error,
        "weight_error": weight_error,
        "loss_error": loss_error,
        "equal": all(torch.equal(found.weights[name], tensor) for name, tensor in reference.weights.items()),
        "agrees": all(error <= most for error, most in zip(errors, _TOLERANCES[precision], strict=True)),
    }


def _relative_error(found: Tensors, reference: Tensors) -> float:
    apart = sum(float((found[name].double() - tensor.double()).square().sum()) for name, tensor in reference.items())
    whole = sum(float(tensor.double().square().sum()) for tensor in reference.values())
    return float((apart / whole) ** 0.5) if whole else 0.0


def _record_trace(bench: Bench, settings: dict[str, Any], variant: dict[str, Any]) -> None:
    name = variant["name"]
    path = bench.out / "traces" / name / f"{name}_rank_{bench.rank}_trace.json"
    record_steps(
        lambda mark: new_training(bench, settings, variant, mark=mark).step,
        path=path,
        steps=int(settings["trace_steps"]),
        device=bench.device,
    )
    bench.bring_to_rank_0(path, bench.out)
    bench.emit(what="trace", variant=name, run=None, paths=gathered(str(path.relative_to(bench.out))))


def _measure_late(
    bench: Bench, settings: dict[str, Any], variant: dict[str, Any], run: int, reference: list[Outcome]
) -> dict[str, Any]:
    """Measure one run, recorded in light mode.

    The slow rank sleeps before each of its steps, as a busy host would. Where a rank waits for the others is
    `gradient_sync`.
    """
    training = new_training(bench, settings, variant, mark=region)
    late_s = variant["delay_ms"] / 1000 if bench.rank == int(settings["slow_rank"]) else 0.0
    out = bench.out / f"logs/{variant['name']}-run{run}"
    with step_log(out=out, light=True, telemetry=False, samples=False) as recording:

        def step() -> Any:
            if late_s:
                time.sleep(late_s)
            loss = training.step()
            if bench.device.type == "cuda":
                with region(GRADIENT_SYNC):  # the host runs ahead of the device: here it waits for the others
                    wait_for_device(bench.device)
            recording.step()
            return loss

        samples = measure(
            step, warmup_steps=int(settings["warmup_steps"]), steps=int(settings["steps"]),
            device=bench.device, fed=training.fed,
        )  # fmt: skip
    log = str(recording.run_folder) if recording.run_folder else None
    bench.emit(what="log", variant=variant["name"], run=run, folder=log)
    return samples


def search_bucket(bench: Bench, settings: dict[str, Any]) -> None:
    """Find the best bucket size on these ranks."""
    every = sorted({DEFAULT_MB, *map(float, settings.get("sizes_mb") or SIZES_MB)})
    sizes, same_as = distinct_sizes(WorkloadSpec(**settings["workload"]), every)

    def times(places: Sequence[int]) -> list[float]:
        """Return the median step time of each place, in ms: the slowest rank's, so that all decide alike."""
        step_ms: dict[int, list[float]] = {place: [] for place in places}
        for _ in range(int(settings.get("round_turns", _TURNS))):
            for place in places:
                step_ms[place] += _turn(bench, settings, sizes[place])
        medians = torch.tensor([median(step_ms[place]) for place in places], device=bench.device)
        dist.all_reduce(medians, op=dist.ReduceOp.MAX)
        times_ms = [float(time) for time in medians]
        bench.emit(what="round", sizes_mb=[sizes[place] for place in places], times_ms=times_ms)
        return times_ms

    found = search(len(sizes), times, exhaustive=bool(settings.get("exhaustive")))
    best_mb = sizes[found.best]
    if same_as.get(DEFAULT_MB) == best_mb:
        best_mb = DEFAULT_MB  # the same buckets
    bench.emit(
        what="found",
        best_mb=best_mb,
        tried_mb=[sizes[place] for place in found.ratios],
        ratios={str(sizes[place]): ratio for place, ratio in found.ratios.items()},
        same_as={str(size): other for size, other in same_as.items()},
    )


def distinct_sizes(spec: WorkloadSpec, sizes: Sequence[float]) -> tuple[list[float], dict[float, float]]:
    """Return the sizes that cut this model into different buckets, and for the others which one they equal."""
    parameters = trainable(workload(spec, "cpu").model)[::-1]
    cuts: dict[tuple[int, ...], float] = {}
    same: dict[float, float] = {}
    for size in sizes:
        first = cuts.setdefault(tuple(len(bucket) for bucket in partition(parameters, size_mb=size)), size)
        if first != size:
            same[size] = first
    return list(cuts.values()), same


def _turn(bench: Bench, settings: dict[str, Any], size_mb: float) -> Sequence[float]:
    """Return the step times of one turn of a size, with a new model, in ms."""
    series = {"implementation": settings["implementation"], "options": {"bucket_size_mb": size_mb}}
    clear_memory(bench)
    training = new_training(bench, settings, series)
    warmup, steps = int(settings.get("round_warmup", 3)), int(settings.get("round_steps", 10))
    return list(measure(training.step, warmup_steps=warmup, steps=steps, device=bench.device)["step_ms"])


# number, kind (warm-up or training), lr, loss, step_ms, and whether the profiler was on
Epoch = dict[str, Any]


def profile_job(bench: Bench, settings: dict[str, Any]) -> None:
    """Train one implementation and record a window on every rank; trace and summary go to the settings' `folder`.

    The learning rate warms up linearly from 0 to 0.001 and stays; gradients are clipped to norm 1 during the warm-up
    only. The window includes the end of the warm-up, so a trace shows both; all other epochs are timed without
    the profiler. An epoch is one optimizer step on synthetic data.

    NAME_rank_R_trace.json    every rank's window, with regions, epochs by name, and memory
    NAME_summary.txt          rank 0: configuration, times, throughput, top operators
    """
    name, folder = settings["implementation"], Path(settings["folder"])
    warmup, total = int(settings["warmup_steps"]), int(settings["warmup_steps"]) + int(settings["steps"])
    first, last = _window(warmup, total, epochs=int(settings["profile_epochs"]))
    host_s: dict[str, dict[int, float]] = {}

    @contextmanager
    def mark(region: str) -> Iterator[None]:
        begin = perf_counter()
        with record_function(region):
            yield
        found = host_s.setdefault(region, {})
        found[training.number] = found.get(training.number, 0.0) + perf_counter() - begin

    training = new_training(bench, settings, {"implementation": name}, clip=True, mark=mark)
    operators: list[str] = []

    def on_trace_ready(profiler: Any) -> None:
        export_trace(profiler, folder / f"{name}_rank_{bench.rank}_trace.json")
        by = "self_cuda_time_total" if bench.device.type == "cuda" else "self_cpu_time_total"
        operators.append(profiler.key_averages().table(sort_by=by, row_limit=_TOP_OPERATORS))

    before = min(first, 1)
    steps = schedule(wait=first - before, warmup=before, active=last - first, repeat=1)
    # Shapes: FLOPs and bytes in the report; memory: its timeline there.
    what = {"activities": activities(bench.device), "record_shapes": True, "profile_memory": True}
    with profile(**what, schedule=steps, on_trace_ready=on_trace_ready) as profiler:
        epochs = [_epoch(bench, training, profiler, total, recorded=first <= i < last) for i in range(total)]
    bench.bring_to_rank_0(folder / f"{name}_rank_{bench.rank}_trace.json", folder)
    bench.emit(what="epochs", epochs=epochs)
    ranks = gathered(training.fed.per_step(range(warmup, total)))
    samples, tokens = (None if None in counts else sum(counts) for counts in zip(*ranks, strict=True))
    rates = throughput(epochs, samples=samples, tokens=tokens)
    bench.emit(what="throughput", **rates)
    if bench.rank == 0:
        regions = {region: 1000 * fmean(found.values()) for region, found in host_s.items()}
        where = {"world_size": bench.world_size, "device": str(bench.device), "torch": str(torch.__version__)}
        counts = {"samples_per_step": samples, "tokens_per_step": tokens}
        facts = {**_workload_facts(training), **counts, **settings.get("options", {}), **where}
        with atomic_write(folder / f"{name}_summary.txt") as f:
            f.write(_summary(settings, epochs, rates, regions, operators[0], facts).encode())


def _workload_facts(training: Training) -> dict[str, Any]:
    """Return the model and its data; the sizes of the settings only for models that are built from them."""
    spec, model = training.work.spec, training.parallel.model
    sizes = {} if ":" in spec.name else {name: getattr(spec, name) for name in WORKLOAD_DEFAULTS}
    facts = {"name": spec.name, "model": type(training.work.model).__name__, "parameters": _size(model), **sizes}
    return {**facts, "precision": spec.precision, "seed": spec.seed, "options": spec.options}


def _window(warmup: int, total: int, *, epochs: int) -> tuple[int, int]:
    """Return the first recorded epoch and the one after the last: around the end of the warm-up.

    >>> window(10, 60, epochs=10), window(2, 5, epochs=10)
    ((5, 15), (0, 5))
    """
    first = max(0, warmup - epochs // 2)
    return first, min(total, first + epochs)


def _epoch(bench: Bench, training: Training, profiler: Any, total: int, *, recorded: bool) -> Epoch:
    kind, lr, number = "warm-up" if training.warming_up else "training", training.lr, training.number
    begin = perf_counter()
    with record_function(f"epoch_{number}_{kind.replace('-', '')}_lr_{lr:.6f}"):
        loss = training.step()
        wait_for_device(bench.device)
    step_ms, shown = 1000 * (perf_counter() - begin), float(loss)
    profiler.step()
    if bench.rank == 0:
        print(  # noqa: T201 - the launcher shows it
            f"epoch {number + 1:3d}/{total}  {kind:<8}  lr {lr:.6f}  loss {shown:.4f}  {step_ms:.1f} ms",
            flush=True,
        )
    return {"number": number, "kind": kind, "lr": lr, "loss": shown, "step_ms": step_ms, "recorded": recorded}


def throughput(epochs: Sequence[Epoch], *, samples: float | None, tokens: float | None) -> dict[str, Any]:
    """Return the throughput of the training epochs, given samples and tokens of the whole job in one of them.

    The warm-up never counts: its first epoch sets things up. Epochs under the profiler count where there are no others.
    """
    training = [e for e in epochs if e["kind"] == "training"]
    quiet = [e["step_ms"] for e in training if not e["recorded"]]
    step_ms = median(quiet or [e["step_ms"] for e in training])
    return {
        "step_ms": step_ms,
        "unprofiled": bool(quiet),
        "source": "without the profiler" if quiet else "while profiled: no training epoch lay outside the window",
        "samples_per_s": samples and 1000 * samples / step_ms,
        "tokens_per_s": tokens and 1000 * tokens / step_ms,
    }


def _summary(
    settings: dict[str, Any], epochs: Sequence[Epoch], rates: dict[str, Any], regions_ms: dict[str, float],
    operators: str, facts: dict[str, Any],
) -> str:  # fmt: skip
    shown = {
        **facts,
        "grad_accum": settings.get("grad_accum", 1),
        "warmup_epochs": settings["warmup_steps"],
        "num_epochs": settings["steps"],
    }
    phases = [f"{'phase':<26} {'epochs':>6} {'median':>9} {'mean':>9} {'min':>9} {'max':>9}"]
    for kind, recorded in (("warm-up", False), ("warm-up", True), ("training", False), ("training", True)):
        if times := [e["step_ms"] for e in epochs if (e["kind"], e["recorded"]) == (kind, recorded)]:
            figures = (median(times), fmean(times), min(times), max(times))
            name = f"{kind}{', recorded' if recorded else ''}"
            phases.append(f"{name:<26} {len(times):>6} " + " ".join(f"{x:>9.2f}" for x in figures))
    phases += ["", f"{'region (host time)':<26} {'mean':>9}   of the epochs that have it"]
    phases += [f"{name:<26} {mean:>9.2f}" for name, mean in regions_ms.items()]
    per_s = {name: rates[f"{name}_per_s"] for name in ("samples", "tokens")}
    parts = {
        "Configuration": [
            f"{name:<18} {value:g}" if isinstance(value, float) else f"{name:<18} {value}"
            for name, value in shown.items()
        ],
        "Step time per phase (ms)": phases,
        "Throughput": [
            f"step               {rates['step_ms']:.2f} ms ({rates['source']})",
            *(
                f"{f'{name}/s':<18} {'unknown: the batches do not show it' if rate is None else f'{rate:.1f}'}"
                for name, rate in per_s.items()
            ),
            f"final loss         {epochs[-1]['loss']:.4f}",
        ],
        "Top operators of the recorded epochs": operators.splitlines(),
    }
    titled = ("\n".join([title, "-" * len(title), *lines]) for title, lines in parts.items())
    return "\n\n".join([f"Profile of {settings['implementation']}", *titled]) + "\n"
