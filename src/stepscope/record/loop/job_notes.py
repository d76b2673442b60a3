"""What the hooks learned about the job, noted for run.json: the model, the optimizer, DDP, samples and tokens."""

import weakref
from collections import Counter
from statistics import median
from typing import Any

import torch

from stepscope.record.batch_contents import contents_of
from stepscope.record.loop.loop import Loop

# Samples and tokens per step, from the batches that the loader yields.
#
# Guessed from their shapes (see `batch_contents`), and marked as a guess. Loops that load one batch ahead show one
# batch too many in their first step, so a step's samples are the most frequent number of the steps seen so far; its
# tokens the median of those steps, since padding and packing make them differ.

_SOURCE = "guess: leading dimensions of the first integer tensor of the loader's batches"
_NO_LOADER = "no DataLoader was seen; give --tokens-per-step"
_NO_TOKENS = "the loader's batches hold no integer tensor of batch x sequence"


class JobNotes:
    """Holds nothing alive: a script that drops its model gets its memory back."""

    def __init__(self) -> None:
        self.counts_batches = True  # in the first steps
        self._samples = self._tokens = 0
        self._steps: list[tuple[int, int]] = []  # samples and tokens of each
        self._workers: int | None = None
        self._model: Any = lambda: None
        self._parameters = 0

    def loaded(self, batch: Any, workers: int | None = None) -> None:
        """Count one batch that the training loop received from a loader with `workers` workers."""
        found = contents_of(batch)
        self._workers = workers
        self._samples += found.samples or 0
        self._tokens += found.tokens or 0

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
        """Return samples and tokens per step of this rank, None with a reason where unknown."""
        if not self._steps:
            return {}
        (samples, _), *_ = Counter(samples for samples, _ in self._steps).most_common(1)
        tokens = round(median(t for s, t in self._steps if s == samples))
        reasons = {} if samples else {"samples_per_step": _NO_LOADER}
        if not tokens:
            reasons["tokens_per_step"] = _NO_TOKENS if samples else _NO_LOADER
        return {
            "samples_per_step": samples or None,
            "tokens_per_step": tokens or None,
            "batch_source": _SOURCE if samples else None,
            "loader_workers": self._workers,
            "reasons": reasons,
        }

    def step_ended(self, loop: Loop) -> None:
        """Close the count of one step, and note what is known once the first steps are over."""
        if self.counts_batches:
            self._steps.append((self._samples, self._tokens))
            self._samples = self._tokens = 0
            self.counts_batches = loop.steps < 8
        if loop.steps in (2, 8):
            self.note(loop)

    def note(self, loop: Loop) -> None:
        """Hand what is known to the recorder."""
        known = {"model": self._model(), "optimizer": loop.optimizers.main(), "step_unit": loop.step_unit()}
        if loop.recorder is not None:
            loop.recorder.note(**{name: value for name, value in (known | self.batch()).items() if value is not None})
