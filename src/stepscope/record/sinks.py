"""Sinks of scalars: TensorBoard, W&B, MLflow, or a function. All get the same names and numbers.

    "tensorboard:runs/a"    an event file in a folder, written without TensorBoard
    "wandb:project"         the run that is active, else a new one in the project
    "mlflow:experiment"     the run that is active, else a new one in the experiment
    anything callable       called with (step, {name: value})

W&B and MLflow are imported on use, and a missing package is reported in one sentence. Neither torch nor a table is
needed here: the analysis side sends a finished run's curves and its report in the same way.
"""

import os
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.errors import UsageError
from stepscope.side_file import refuse_output

Scalars = Mapping[str, float]


class Sink(Protocol):
    """Takes scalars by step, and files."""

    def scalars(self, step: int, values: Scalars) -> None: ...
    def artefact(self, path: str | Path) -> None: ...
    def close(self) -> None: ...


def sink_from(where: Any) -> Sink:
    """Return the sink that a text names, an object is, or a function becomes."""
    if isinstance(where, str):
        kind, _, name = place_from(where).partition(":")
        return _MAKE[kind](name)
    return where if hasattr(where, "scalars") else Function(where)


def place_from(text: str) -> str:
    """Return a place as given, a folder as a whole path; a `UsageError` for what is none."""
    kind, _, name = text.partition(":")
    if kind not in ("tensorboard", "wandb", "mlflow") or (kind == "tensorboard" and not name):
        raise UsageError(f"{text!r} is no place for scalars; use tensorboard:DIR, wandb:PROJECT or mlflow:EXPERIMENT")
    return f"{kind}:{Path(name).absolute()}" if kind == "tensorboard" else text


def sinks_from(given: Any) -> list[Sink]:
    """Return the sinks of one place, several, or none."""
    if given is None:
        return []
    return [sink_from(one) for one in (given if isinstance(given, list | tuple) else [given])]


class TensorBoard:
    """An event file; every call is on the disk before it returns."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path = self._folder / f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.{os.getpid()}"
        refuse_output(self.path)
        self._file: IO[bytes] = self.path.open("ab")
        self._write(version_record(time.time()))

    def scalars(self, step: int, values: Scalars) -> None:
        self._write(scalars_record(step, values, wall_s=time.time()))

    def artefact(self, path: str | Path) -> None:
        """Copy the file next to the event file: TensorBoard has no artefacts."""
        target = self._folder / Path(path).name
        if target.absolute() != Path(path).absolute():
            refuse_output(target)
            target.write_bytes(Path(path).read_bytes())

    def close(self) -> None:
        self._file.close()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self._file.flush()


class WandB:
    """Weights & Biases."""

    def __init__(self, project: str) -> None:
        self._module = tracking_module("wandb")
        active = getattr(self._module, "run", None)
        self._own = active is None
        self._run = active if active is not None else self._module.init(project=project or None)

    def scalars(self, step: int, values: Scalars) -> None:
        self._run.log(dict(values), step=step)

    def artefact(self, path: str | Path) -> None:
        artefact = self._module.Artifact(f"stepscope-{Path(path).stem}", type="report")
        artefact.add_file(str(path))
        self._run.log_artifact(artefact)

    def close(self) -> None:
        if self._own:
            self._run.finish()


class MLflow:
    """MLflow."""

    def __init__(self, experiment: str) -> None:
        self._module = tracking_module("mlflow")
        self._own = self._module.active_run() is None
        if self._own:
            if experiment:
                self._module.set_experiment(experiment)
            self._module.start_run()

    def scalars(self, step: int, values: Scalars) -> None:
        self._module.log_metrics(dict(values), step=step)

    def artefact(self, path: str | Path) -> None:
        self._module.log_artifact(str(path))

    def close(self) -> None:
        if self._own:
            self._module.end_run()


class Function:
    """A function of the user's."""

    def __init__(self, call: Callable[[int, Scalars], Any]) -> None:
        self._call = call

    def scalars(self, step: int, values: Scalars) -> None:
        self._call(step, values)

    def artefact(self, path: str | Path) -> None:
        """Do nothing: it takes numbers."""

    def close(self) -> None:
        """Do nothing."""


def tracking_module(name: str) -> Any:
    """Return the package of a tracking server; a `UsageError` where it is not installed."""
    try:
        return import_module(name)
    except ImportError as e:
        raise UsageError(f"{name} cannot be imported: {e}; run: pip install {name}") from e


_MAKE: dict[str, Callable[[str], Sink]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}
