"""Samples and tokens per step, from the batches that the loader yields.

Guessed from their shapes (see `batch_contents`), and said to be a guess. Loops that load one batch ahead show one batch
too many in their first step, so a step's samples are the most frequent number of the steps seen so far; its tokens the
median of those steps, since padding and packing make them differ.
"""

from collections import Counter
from statistics import median
from typing import Any

from stepscope.record.batch_contents import contents_of
from stepscope.record.hooks.loop.loop import Loop

_LOOK_STEPS = 8
_SOURCE = "guess: leading dimensions of the first integer tensor of the loader's batches"
_NO_LOADER = "no DataLoader was seen; say it with --tokens-per-step"
_NO_TOKENS = "the loader's batches hold no integer tensor of batch x sequence"


class BatchSize:
    """Counts what is loaded in each of the first steps, then `looks` no more."""

    def __init__(self) -> None:
        self._samples = self._tokens = 0
        self._seen: list[tuple[int, int]] = []
        self.looks = True

    def loaded(self, batch: Any) -> None:
        """Count one batch that the training loop received."""
        found = contents_of(batch)
        self._samples += found.samples or 0
        self._tokens += found.tokens or 0

    def step_ended(self, loop: Loop) -> None:
        """Close the count of one step."""
        if self.looks:
            self._seen.append((self._samples, self._tokens))
            self._samples = self._tokens = 0
            self.looks = loop.steps < _LOOK_STEPS

    def facts(self) -> dict[str, Any]:
        """Return samples and tokens per step of this rank, None with a reason where unknown."""
        if not self._seen:
            return {}
        (samples, _), *_ = Counter(samples for samples, _ in self._seen).most_common(1)
        tokens = round(median(t for s, t in self._seen if s == samples))
        reasons = {"samples_per_step": None if samples else _NO_LOADER}
        reasons["tokens_per_step"] = None if tokens else (_NO_TOKENS if samples else _NO_LOADER)
        return {
            "samples_per_step": samples or None,
            "tokens_per_step": tokens or None,
            "batch_source": _SOURCE if samples else None,
            "reasons": {name: why for name, why in reasons.items() if why},
        }
