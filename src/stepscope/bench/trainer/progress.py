"""What a training tells and keeps between its steps: log lines, TensorBoard logs, checkpoints."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from stepscope.bench.trainer import checkpoint as trainer_checkpoint
from stepscope.bench.trainer.events import Events
from stepscope.bench.trainer.process import Process
from stepscope.bench.trainer.steps import Steps
from stepscope.errors import UsageError
from stepscope.record.failsafe import say as warn

_TENSORBOARD = "tensorboard"

Say = Callable[[str], None]


class Progress:
    """What is told and kept between steps: log lines and TensorBoard on rank 0, checkpoints on all."""

    def __init__(self, steps: Steps, folder: Path, process: Process, say: Say | None) -> None:
        self._steps, self._folder, self._process = steps, folder, process
        self._say = say if process.rank == 0 else None
        self._events: Events | None = None
        self._since_s, self._since_step = time.perf_counter(), steps.number

    @contextmanager
    def open(self) -> Iterator[None]:
        """Keep the event file open while training runs."""
        if self._process.rank == 0 and self._steps.config.output.tensorboard:
            self._events = Events(self._folder / _TENSORBOARD)
        try:
            yield
        finally:
            if self._events is not None:
                self._events.close()

    def after(self, loss: torch.Tensor) -> None:
        """Tell of the step that just ran, where it is its turn."""
        train, done = self._steps.config.train, self._steps.number
        if (done % train.log_every == 0 or done == train.steps) and (self._say or self._events):
            self._tell(done, float(loss))
        if train.checkpoint_every and (done % train.checkpoint_every == 0 or done == train.steps):
            with name_write_errors(self._folder):
                trainer_checkpoint.save(self._steps, self._folder, rank=self._process.rank)

    def _tell(self, done: int, loss: float) -> None:
        now_s = time.perf_counter()
        step_s = (now_s - self._since_s) / max(done - self._since_step, 1)
        self._since_s, self._since_step = now_s, done
        config, lr = self._steps.config, self._steps.parallel.optimizer.param_groups[0]["lr"]
        if self._events is not None:
            taken = self._steps.fed.steps[-1]
            counts = {"samples_per_sec": taken.samples, "tokens_per_sec": taken.tokens}
            ranks = self._process.world_size
            rates = {name: count * ranks / step_s for name, count in counts.items() if count is not None}
            rates["step_ms"] = step_s * 1e3
            self._log(done, {"loss": loss, "learning_rate": lr, **rates})
        if self._say is not None:
            kind = "warm-up " if done <= config.scheduler.warmup_steps else "training"
            self._say(f"step {done:5d} of {config.train.steps}  {kind}  lr {lr:.3e}  loss {loss:.4f}")

    def _log(self, done: int, values: dict[str, float]) -> None:
        assert self._events is not None
        try:
            self._events.scalars(done, values)
        except OSError as e:
            warn(f"no more TensorBoard logs, training goes on: {e.strerror}")
            self._events = None


@contextmanager
def name_write_errors(folder: Path) -> Iterator[None]:
    """Turn what the file system refuses into one line."""
    try:
        yield
    except OSError as e:
        raise UsageError(f"output.dir: cannot write to {folder}: {e.strerror}; choose another folder") from e
