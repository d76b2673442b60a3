"""What the hooks learned about the job, noted for run.json: the model, the optimizer, DDP, samples and tokens."""

import weakref
from typing import Any

import torch

from stepscope.record.hooks.loop.batch_size import BatchSize
from stepscope.record.hooks.loop.loop import Loop

_NOTE_AFTER_STEPS = (2, 8)


class JobNotes:
    """Holds nothing alive: a script that drops its model gets its memory back."""

    def __init__(self, batch_size: BatchSize) -> None:
        self._batch_size = batch_size
        self._model: Any = lambda: None
        self._parameters = 0

    def model_found(self, module: torch.nn.Module) -> None:
        """Remember the largest module that the loop calls."""
        parameters = sum(p.numel() for p in module.parameters())
        if parameters > self._parameters:
            self._parameters = parameters
            self._model = weakref.ref(module)

    def model(self) -> Any:
        """Return that module, None before it was found and after the script dropped it."""
        return self._model()

    def batch(self) -> dict[str, Any]:
        """Return samples and tokens per step of this rank, as far as its batches tell."""
        return self._batch_size.facts()

    def step_ended(self, loop: Loop) -> None:
        """Note what is known once the first steps are over."""
        if loop.steps in _NOTE_AFTER_STEPS:
            self.note(loop)

    def note(self, loop: Loop) -> None:
        """Hand what is known to the recorder."""
        known = {"model": self._model(), "optimizer": loop.optimizers.main(), **self._batch_size.facts()}
        known["step_unit"] = loop.step_unit()
        if loop.recorder is not None:
            loop.recorder.note(**{name: value for name, value in known.items() if value is not None})
