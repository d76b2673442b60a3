"""A trainer to import: one configuration in, traces, summary and TensorBoard logs out.

    import stepscope

    stepscope.Trainer("job.toml").train(profile=True)
    stepscope.Trainer(model=net, data=dataset, loss=loss_of, overrides=["train.lr=0.01"]).train(profile=True)

It runs in a single process, or on the ranks that torchrun started:

    torchrun --nproc-per-node=2 -m stepscope.bench.trainer --config job.toml --set train.lr=0.01

    output.dir/   run/             the run folder: traces, step logs, run.json; for `stepscope report`
                  summary.json     summary.txt
                  tensorboard/     loss, learning rate, throughput
                  checkpoint.pt    with train.checkpoint_every
"""

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.data import Dataset

from stepscope.contract.run_folder import SCHEMA, atomic_write, steps_file
from stepscope.contract.step_line import WARMUP, WINDOW
from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.lab.bench.config import (
    SINGLE,
    BenchConfig,
    OptimizerConfig,
    add_config_arguments,
    add_training_flags,
    config_from,
    learning_rate,
    training_overrides,
)
from stepscope.lab.bench.implementations import Options, Parallel, parallel
from stepscope.lab.bench.measure import measure
from stepscope.lab.bench.results import series
from stepscope.lab.bench.training import Mark, Training, unmarked
from stepscope.lab.bench.workloads import GivenBatches, Workload, workload
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import say as warn
from stepscope.record.launch.inject_point import followed_from_outside
from stepscope.record.profile import profile, region
from stepscope.record.window.schedule import census_step, frame_step, phase_of
from stepscope.side_file import refuse_output
from stepscope.units import NS_PER_MS, json_text

_SUMMARY_JSON, _SUMMARY_TXT, _CHECKPOINT = "summary.json", "summary.txt", "checkpoint.pt"
# Weights and optimizer state are gathered, so training can resume with another number of ranks or another strategy.
_GATHERED = {"full_state_dict": True, "cpu_offload": True}

Loss = Callable[[nn.Module, Any], torch.Tensor]
Say = Callable[[str], None]


@dataclass(frozen=True)
class TrainingResult:
    """What a training wrote: losses are of this rank, one per step; the summary is on rank 0."""

    folder: Path
    run_folder: Path | None
    losses: tuple[float, ...]
    summary: dict[str, Any] | None


class Trainer:
    """Trains the configured workload, or your own model on your own data.

    `config` is a file, a `BenchConfig`, or nothing; `overrides` are texts such as "train.lr=0.01". With `model` come
    `data` (a Dataset, which ranks share out, or this rank's batches) and `loss(model, batch)`. `say` gets log lines.
    """

    def __init__(
        self, config: BenchConfig | str | Path | None = None, *, overrides: Iterable[str] = (),
        model: torch.nn.Module | None = None, data: Any = None, loss: Loss | None = None,
        device: torch.device | str | None = None, force: bool = False, say: Say | None = None,
    ) -> None:  # fmt: skip
        if isinstance(config, BenchConfig) and list(overrides):
            raise UsageError("Trainer: overrides cannot be used with a BenchConfig; change the BenchConfig itself")
        self.config = config if isinstance(config, BenchConfig) else config_from(config, overrides)
        self._own = {"model": model, "data": data, "loss": loss}
        self._device, self._force, self._say = device, force, say

    def train(self, *, profile: bool = False, resume: bool = False) -> TrainingResult:
        """Train to the last step; with `profile` into a run folder, with `resume` from the folder's checkpoint."""
        folder = Path(self.config.output.dir)
        if (folder / _SUMMARY_JSON).exists() and not (self._force or resume):
            raise UsageError(
                f"output.dir: {folder}/{_SUMMARY_JSON} already exists; choose another one, or give force=True"
            )
        with _write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _process_group(self._device) as (rank, world_size, device):
            work = _workload(self.config, **self._own, device=device)
            mark = region if profile and not followed_from_outside() else unmarked
            training, strategy = _training(self.config, work, rank=rank, world_size=world_size, mark=mark)
            if resume:
                _resume(training, folder / _CHECKPOINT, self.config.train.steps)
            return self._train(training, strategy, rank, world_size, folder, profiled=profile)

    def _train(
        self, training: Training, strategy: str, rank: int, world_size: int, folder: Path, *, profiled: bool
    ) -> TrainingResult:
        config, first = self.config, training.number
        progress = _Progress(config, training, folder, rank, world_size, self._say)
        with _record(config, training, strategy, folder / "run", profiled=profiled) as recording, progress.open():

            def step() -> torch.Tensor:
                loss = training.step()
                progress.after(loss)
                if recording is not None:
                    if training.number == first + 1:
                        samples, tokens = training.fed.steps[0]
                        recording.note(samples_per_step=samples, tokens_per_step=tokens)
                    recording.step()
                return loss

            found = measure(step, warmup_steps=0, steps=config.train.steps - first, device=training.work.device)
        run_folder = recording.run_folder if recording is not None else None
        counted = _counted_steps(config, recording.config if recording is not None else None, first=first)
        if rank == 0 and (only_warmup := _only_warmup(config, counted)):
            warn(only_warmup)
        found["samples_per_step"], found["tokens_per_step"] = training.fed.per_step([step - first for step in counted])
        ranks: list[Any] = [found]
        if world_size > 1:
            ranks = [None] * world_size
            dist.gather_object(found, ranks if rank == 0 else None)
        if rank:
            return TrainingResult(folder, run_folder, tuple(found["losses"]), None)
        own = self._own["model"]
        summary = _summary(config, ranks, counted, first, strategy, run_folder, own)
        with _write_errors(folder):
            for name, content in ((_SUMMARY_JSON, json_text(summary, indent=1) + "\n"), (_SUMMARY_TXT, _text(summary))):
                with atomic_write(folder / name) as f:
                    f.write(content.encode())
        return TrainingResult(folder, run_folder, tuple(found["losses"]), summary)


@contextmanager
def _process_group(wanted: torch.device | str | None) -> Iterator[tuple[int, int, torch.device]]:
    """Join the group that torchrun's variables describe, unless the script has; a group that we made is left again."""
    here = torch.device("cpu")
    if torch.cuda.is_available():
        here = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    device = here if wanted is None else torch.device(wanted)
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.set_device(device)
    make = not dist.is_initialized() and int(os.environ.get("WORLD_SIZE", "1")) > 1
    if make:
        dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    try:
        yield (dist.get_rank(), dist.get_world_size(), device) if dist.is_initialized() else (0, 1, device)
    finally:
        if make:
            dist.destroy_process_group()


@contextmanager
def _write_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as e:
        raise UsageError(f"output.dir: cannot write to {folder}: {e.strerror}; choose another folder") from e


def _workload(config: BenchConfig, *, model: Any, data: Any, loss: Loss | None, device: torch.device) -> Workload:
    """Return the configured workload, or one of the user's own model, data and loss."""
    lacking = [name for name, given in (("model", model), ("data", data), ("loss", loss)) if given is None]
    if len(lacking) == 3:
        return workload(config.workload_spec, device)
    if lacking:
        raise UsageError(f"Trainer: {lacking[0]} is missing; give model, data and loss together")
    same = {"spec": config.workload_spec, "model": model.to(device), "device": device, "objective": loss}
    if isinstance(data, Dataset):
        return Workload(**same, samples=data)
    return GivenBatches(**same, samples=Dataset(), given=data, own=True)


class _SingleProcess(Parallel):
    """One process: nothing to exchange, and no group."""

    def __init__(self, model: nn.Module, options: Options) -> None:
        self.model = model
        self.exchange = True
        self.optimizer = self._optimizer(model, options)


def _training(config: BenchConfig, work: Workload, *, rank: int, world_size: int, mark: Mark) -> tuple[Training, str]:
    """Return the training of a workload, its model made data-parallel, and the strategy in use."""
    train, scheduler = config.train, config.scheduler
    torch.set_float32_matmul_precision("high" if train.precision == "tf32" else "highest")
    if train.strategy == SINGLE and world_size > 1:
        raise UsageError(f"train.strategy: 'single' cannot train on {world_size} ranks; use pytorch_ddp")
    names = ("bucket_size_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters", "lr", "grad_accum")
    options = Options(
        **{name: getattr(train, name) for name in names},
        micro_batch_size=config.workload.batch_size,
        precision=train.precision,
    )
    strategy = SINGLE if world_size == 1 else train.strategy
    model = _SingleProcess(work.model, options) if world_size == 1 else parallel(strategy, work.model, options)
    _set_optimizer(model, config.optimizer, strategy=strategy, lr=train.lr)
    return Training(
        work, model, rank=rank, world_size=world_size, warmup_steps=scheduler.warmup_steps,
        grad_accum=train.grad_accum, clip_norm=train.clip_norm,
        clip_steps=train.steps if train.clip == "always" else scheduler.warmup_steps, mark=mark,
        lr=lambda step: learning_rate(
            step, peak=train.lr, warmup_steps=scheduler.warmup_steps, decay=scheduler.decay,
            total_steps=config.total_steps, final_ratio=scheduler.final_ratio,
        ),
    ), strategy  # fmt: skip


def _set_optimizer(model: Parallel, config: OptimizerConfig, *, strategy: str, lr: float) -> None:
    if config == OptimizerConfig():
        return
    if strategy.startswith("deepspeed"):
        raise UsageError(
            f"optimizer: the engine of train.strategy {strategy} owns its optimizer, so it cannot be changed "
            f"(name={config.name!r}); choose another strategy or leave [optimizer] out"
        )
    kind = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}[config.name]
    own = {"momentum": config.momentum} if config.name == "sgd" else {"betas": config.betas}
    how = {"fused": True} if config.fused else {"foreach": True}
    given = {"lr": lr, "weight_decay": config.weight_decay, **own, **how}
    weights = model.model.parameters()
    if strategy == "zero1":
        model.optimizer = ZeroRedundancyOptimizer(weights, optimizer_class=kind, **given)
    else:
        model.optimizer = kind(weights, **given)


def _save(training: Training, path: Path, *, rank: int) -> None:
    """Write the training between two steps; every rank has to call it, rank 0 writes."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict  # takes a second

    options = StateDictOptions(**_GATHERED)
    model, optimizer = get_state_dict(training.parallel.model, training.parallel.optimizer, options=options)
    if rank == 0:
        scaler = training.scaler.state_dict()
        with atomic_write(path) as f:
            torch.save({"step": training.number, "model": model, "optimizer": optimizer, "scaler": scaler}, f)


def _resume(training: Training, path: Path, steps: int) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as e:
        raise InputError(f"{path}: no checkpoint to resume; set train.checkpoint_every") from e
    except (OSError, RuntimeError, EOFError) as e:
        raise InputError(f"{path}: cannot read the checkpoint: {type(e).__name__}: {e}") from e
    if found["step"] >= steps:
        raise UsageError(f"train.steps: {steps} is not more than the {found['step']} that {path} has")
    try:
        set_state_dict(
            training.parallel.model, training.parallel.optimizer, model_state_dict=found["model"],
            optim_state_dict=found["optimizer"], options=StateDictOptions(**_GATHERED),
        )  # fmt: skip
    except (RuntimeError, KeyError, ValueError) as e:
        reason = " ".join(str(e).split())[:200]
        raise InputError(f"{path}: not a checkpoint of the configured model and optimizer: {reason}") from e
    training.scaler.load_state_dict(found["scaler"])
    training.skip_batches(found["step"])


class Events:
    """One TensorBoard event file; every call of `scalars` is on the disk before it returns."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        refuse_output(self.path)
        self._file = self.path.open("ab", buffering=0)
        self._file.write(version_record(time.time()))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Write one value of each tag for a step."""
        self._file.write(scalars_record(step, values, wall_s=time.time()))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Progress:
    """Between steps: log lines and TensorBoard on rank 0, checkpoints on all ranks."""

    def __init__(
        self, config: BenchConfig, training: Training, folder: Path, rank: int, world_size: int, say: Say | None
    ) -> None:
        self._config, self._training, self._folder = config, training, folder
        self._rank, self._world_size, self._say = rank, world_size, say if rank == 0 else None
        self._events: Events | None = None
        self._since_s, self._since_step = time.perf_counter(), training.number

    @contextmanager
    def open(self) -> Iterator[None]:
        if self._rank == 0 and self._config.output.tensorboard:
            self._events = Events(self._folder / "tensorboard")
        try:
            yield
        finally:
            if self._events is not None:
                self._events.close()

    def after(self, loss: torch.Tensor) -> None:
        train, done = self._config.train, self._training.number
        if (done % train.log_every == 0 or done == train.steps) and (self._say or self._events):
            self._log(done, float(loss))
        if train.checkpoint_every and (done % train.checkpoint_every == 0 or done == train.steps):
            with _write_errors(self._folder):
                _save(self._training, self._folder / _CHECKPOINT, rank=self._rank)

    def _log(self, done: int, loss: float) -> None:
        now_s = time.perf_counter()
        step_s = (now_s - self._since_s) / max(done - self._since_step, 1)
        self._since_s, self._since_step = now_s, done
        lr = self._training.parallel.optimizer.param_groups[0]["lr"]
        if self._events is not None:
            counts = zip(("samples_per_sec", "tokens_per_sec"), self._training.fed.steps[-1], strict=True)
            rates = {name: count * self._world_size / step_s for name, count in counts if count is not None}
            try:
                self._events.scalars(done, {"loss": loss, "learning_rate": lr, **rates, "step_ms": step_s * 1e3})
            except OSError as e:  # a full disk ends the logs, not the training
                warn(f"no more TensorBoard logs; training continues: {e.strerror}")
                self._events = None
        if self._say is not None:
            kind = "warm-up " if done <= self._config.scheduler.warmup_steps else "training"
            self._say(f"step {done:5d} of {self._config.train.steps}  {kind}  lr {lr:.3e}  loss {loss:.4f}")


@contextmanager
def _record(
    config: BenchConfig, training: Training, strategy: str, out: Path, *, profiled: bool
) -> Iterator[profile | None]:
    """Record the training; where `stepscope record` follows this process, its own recorder does."""
    if not profiled or followed_from_outside():
        yield None
        return
    window = asdict(config.profile)
    ranks = window.pop("ranks")
    with profile(out=out, **window, ranks="all" if ranks is None else list(ranks)) as recording:
        recording.note(
            model=training.parallel.model,
            optimizer=training.parallel.optimizer,
            **({"strategy": "ddp"} if "ddp" in strategy else {}),  # others are known by their objects
        )
        yield recording


def _counted_steps(config: BenchConfig, recording: RecordConfig | None, *, first: int) -> list[int]:
    """Return the steps whose times count: after the warm-up and without the profiler; all where none would be left."""

    def disturbed(step: int) -> bool:
        return recording is not None and (
            phase_of(step, recording)[0] in (WARMUP, WINDOW) or step in (census_step(recording), frame_step(recording))
        )

    every = list(range(first, config.train.steps))
    warm = [step for step in every if step >= min(config.scheduler.warmup_steps, config.train.steps // 2)]
    return [step for step in warm if not disturbed(step - first)] or warm or every


def _only_warmup(config: BenchConfig, counted: Sequence[int]) -> str | None:
    warmup_steps = config.scheduler.warmup_steps
    if not all(step < warmup_steps for step in counted):
        return None
    return (
        f"the summary is of warm-up steps only: train.steps is {config.train.steps} and scheduler.warmup_steps "
        f"{warmup_steps}; train longer or warm up in fewer steps"
    )


def _summary(
    config: BenchConfig, ranks: Sequence[dict[str, Any]], counted: Sequence[int], first: int, strategy: str,
    run_folder: Path | None, own_model: nn.Module | None,
) -> dict[str, Any]:  # fmt: skip
    settings = {name: part for name, part in asdict(config).items() if name not in ("bench", "ranks")}
    if own_model is not None:
        settings["workload"] = {"name": f"own model: {type(own_model).__name__}"}
    timed = [{**rank, "step_ms": [rank["step_ms"][step - first] for step in counted]} for rank in ranks]
    row = series(strategy, config=settings, runs=[timed])
    return {
        "schema": SCHEMA,
        "kind": "training",
        "config": settings,
        "strategy": strategy,
        "world_size": len(ranks),
        "steps_taken": len(ranks[0]["step_ms"]),
        "summary": row["summary"],
        "warning": _only_warmup(config, counted),
        "samples_ms": row["samples_ms"][0],
        **_regions(run_folder, [step - first for step in counted], fmean(timed[0]["step_ms"])),
        "run_folder": str(run_folder) if run_folder is not None else None,
    }


def _regions(run_folder: Path | None, counted: Sequence[int], step_ms: float) -> dict[str, Any]:
    """Return the parts of rank 0's mean step, which sum to it, and the regions that only other steps have.

    `regions_ms` is None without a recording.
    """
    try:
        lines = (run_folder / steps_file(0)).read_text().splitlines() if run_folder is not None else []
    except OSError:
        lines = []
    logged = {line["step"]: line["regions"] for line in map(json.loads, lines) if "regions" in line}
    steps = [logged[number] for number in counted if number in logged]
    if not steps:
        return {"regions_ms": None, "other_regions": {}}

    def mean_ms(name: str, steps: Sequence[Mapping[str, Any]]) -> float:
        return fmean(regions.get(name, {"ns": 0})["ns"] for regions in steps) / NS_PER_MS

    parts = {name: mean_ms(name, steps) for name in dict.fromkeys(name for regions in steps for name in regions)}
    parts["rest of the step"] = step_ms - sum(parts.values())
    others = {}
    for name in dict.fromkeys(name for regions in logged.values() for name in regions if name not in parts):
        having = [regions for regions in logged.values() if name in regions]
        others[name] = {"ms": mean_ms(name, having), "steps": len(having)}
    return {"regions_ms": parts, "other_regions": others}


def _text(found: dict[str, Any]) -> str:
    lines = ["Configuration"]
    for section, settings in found["config"].items():
        lines.append(f"  {section:<11} " + "  ".join(f"{name} {value}" for name, value in settings.items()))
    lines += ["", f"{found['steps_taken']} steps, {found['strategy']}, ranks: {found['world_size']}"]
    lines += [f"! {found['warning']}" if found["warning"] else "Times in ms, of steps without profiler and warm-up"]
    for name, value in found["summary"].items():
        shown = "unknown" if value is None else f"{value:.4g}" if isinstance(value, float) else value
        lines.append(f"  {name:<28} {shown}")
    if found["regions_ms"]:
        lines += ["", "Parts of a step  (own time, ms, rank 0, the same steps)"]
        parts = {**found["regions_ms"], "mean step of rank 0": sum(found["regions_ms"].values())}
        lines += [f"  {name:<28} {value:.3f}" for name, value in parts.items()]
        for name, other in found["other_regions"].items():
            lines.append(f"  {name:<28} {other['ms']:.3f} in each of {other['steps']} other steps")
    if found["run_folder"]:
        lines += ["", f"Run folder  {found['run_folder']}", f"Read it with: stepscope report {found['run_folder']}"]
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code of a training from the command line."""
    parser = argparse.ArgumentParser(
        prog="stepscope.bench.trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_arguments(parser)
    add_training_flags(parser)
    parser.add_argument("--no-profile", action="store_true", help="train without recording")
    parser.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    parser.add_argument("--force", action="store_true", help="write into a folder that holds a training")
    args = parser.parse_args(arguments)
    try:
        trainer = Trainer(args.config, overrides=training_overrides(args), force=args.force, say=_print)
        done = trainer.train(profile=not args.no_profile, resume=args.resume)
    except StepscopeError as error:
        sys.stderr.write(f"stepscope: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stepscope: stopped; the run folder, logs and checkpoint keep what was done until then\n")
        return 130
    if done.summary is not None:
        _print(f"summary in {done.folder}/{_SUMMARY_TXT}")
        if done.run_folder is not None:
            _print(f"report it with: stepscope report {done.run_folder}")
    return 0


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
