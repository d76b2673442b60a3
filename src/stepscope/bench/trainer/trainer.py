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
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stepscope.bench.config import settings as configuration
from stepscope.bench.config.parser import add_config_arguments
from stepscope.bench.config.sections import SINGLE, BenchConfig
from stepscope.bench.data_parallel.training import unmarked
from stepscope.bench.session.measure import measure
from stepscope.bench.trainer import checkpoint as trainer_checkpoint
from stepscope.bench.trainer import summary as trainer_summary
from stepscope.bench.trainer.process import Process, join_group
from stepscope.bench.trainer.progress import Progress, Say, name_write_errors
from stepscope.bench.trainer.steps import Loss, SingleProcess, Steps, make_steps, make_workload
from stepscope.errors import StepscopeError, UsageError
from stepscope.record.launch.inject_point import followed_from_outside
from stepscope.record.profile import profile, region

_RUN = "run"


@dataclass(frozen=True)
class TrainingResult:
    """What a training left behind."""

    folder: Path
    run_folder: Path | None
    #: of this rank, one per step
    losses: tuple[float, ...]
    #: on rank 0
    summary: dict[str, Any] | None


class Trainer:
    """Trains the configured workload, or your own model on your own data.

    `config` is a file, a `BenchConfig`, or nothing; `overrides` are texts such as "train.lr=0.01". With `model` come
    `data` (a Dataset, which ranks share out, or this rank's batches) and `loss(model, batch)`. `say` gets log lines.
    """

    def __init__(
        self,
        config: BenchConfig | str | Path | None = None,
        *,
        overrides: Iterable[str] = (),
        model: torch.nn.Module | None = None,
        data: Any = None,
        loss: Loss | None = None,
        device: torch.device | str | None = None,
        force: bool = False,
        say: Say | None = None,
    ) -> None:
        if isinstance(config, BenchConfig):
            if list(overrides):
                raise UsageError("Trainer: overrides cannot be used with a BenchConfig; change the BenchConfig itself")
            self.config = config
        else:
            self.config = configuration.config_from(config, overrides)
        self._own = {"model": model, "data": data, "loss": loss}
        self._device, self._force, self._say = device, force, say

    def train(self, *, profile: bool = False, resume: bool = False) -> TrainingResult:
        """Train to the last step; with `profile` into a run folder, with `resume` from the folder's checkpoint."""
        folder = self._folder(resume=resume)
        with join_group(self._device) as process:
            work = make_workload(self.config, **self._own, device=process.device)
            mark = region if profile and not followed_from_outside() else unmarked
            steps = make_steps(self.config, work, process=process, mark=mark)
            if resume:
                trainer_checkpoint.resume(steps, folder)
            return self._train(steps, process, folder, profiled=profile)

    def _folder(self, *, resume: bool) -> Path:
        """Return the output folder, made; refuse one that holds another training or cannot be written."""
        folder = Path(self.config.output.dir)
        if (folder / trainer_summary.SUMMARY_JSON).exists() and not (self._force or resume):
            raise UsageError(
                f"output.dir: {folder}/{trainer_summary.SUMMARY_JSON} already exists; "
                "choose another one, or give force=True"
            )
        with name_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _train(self, steps: Steps, process: Process, folder: Path, *, profiled: bool) -> TrainingResult:
        first = steps.number
        progress = Progress(steps, folder, process, self._say)
        with _record(steps, folder / _RUN, profiled=profiled) as recording, progress.open():

            def step() -> torch.Tensor:
                loss = steps.step()
                progress.after(loss)
                if recording is not None:
                    if steps.number == first + 1:
                        taken = steps.fed.steps[0]
                        recording.note(samples_per_step=taken.samples, tokens_per_step=taken.tokens)
                    recording.step()
                return loss

            samples = measure(step, warmup_steps=0, steps=self.config.train.steps - first, device=process.device)
        run_folder = recording.run_folder if recording is not None else None
        found = None
        counted = trainer_summary.counted_steps(
            self.config, recording.config if recording is not None else None, first=first
        )
        per_step = steps.fed.per_step([step - first for step in counted])
        fed = {"samples_per_step": per_step.samples, "tokens_per_step": per_step.tokens}
        if records := process.gather({**samples.as_dict(), **fed}):
            own = self._own["model"]
            found = trainer_summary.summary(
                self.config,
                records,
                counted=counted,
                first=first,
                own_model=None if own is None else type(own).__name__,
                strategy=_strategy(steps),
                run_folder=run_folder,
            )
            with name_write_errors(folder):
                trainer_summary.write(found, folder)
        return TrainingResult(folder, run_folder, samples.losses, found)


@contextmanager
def _record(steps: Steps, out: Path, *, profiled: bool) -> Iterator[profile | None]:
    """Record what is trained inside; where `stepscope record` follows this process, its own recorder does."""
    if not profiled or followed_from_outside():
        yield None
        return
    settings = steps.config.profile
    window = {name: getattr(settings, name) for name in ("wait", "warmup", "active", "repeat")}
    more = {name: getattr(settings, name) for name in ("record_shapes", "profile_memory", "with_stack")}
    ranks = "all" if settings.ranks is None else list(settings.ranks)
    with profile(out=out, **window, **more, ranks=ranks) as recording:
        recording.note(
            model=steps.parallel.model,
            optimizer=steps.parallel.optimizer,
            **({"strategy": "ddp"} if "ddp" in _strategy(steps) else {}),  # others are known by their objects
        )
        yield recording


def _strategy(steps: Steps) -> str:
    """Return the strategy that is really at work: one process has nothing to share out."""
    return SINGLE if isinstance(steps.parallel, SingleProcess) else steps.config.train.strategy


def main(arguments: list[str] | None = None) -> int:
    """Return the exit code of a training from the command line."""
    parser = argparse.ArgumentParser(
        prog="stepscope.bench.trainer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_config_arguments(parser)
    configuration.add_training_flags(parser)
    parser.add_argument("--no-profile", action="store_true", help="train without recording")
    parser.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint")
    parser.add_argument("--force", action="store_true", help="write into a folder that holds a training")
    args = parser.parse_args(arguments)
    try:
        trainer = Trainer(args.config, overrides=configuration.training_overrides(args), force=args.force, say=_print)
        done = trainer.train(profile=not args.no_profile, resume=args.resume)
    except StepscopeError as error:
        sys.stderr.write(f"stepscope: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("stepscope: stopped; the run folder, logs and checkpoint keep what was done until then\n")
        return 130
    if done.summary is not None:
        _print(f"summary in {done.folder}/{trainer_summary.SUMMARY_TXT}")
        if done.run_folder is not None:
            _print(f"look at it with: stepscope report {done.run_folder}")
    return 0


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - only the command line says it this way


if __name__ == "__main__":
    sys.exit(main())
