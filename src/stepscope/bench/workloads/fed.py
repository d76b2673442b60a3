"""What was the model fed? Samples and tokens of every step, counted from the batches themselves."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stepscope.record.batch_contents import BatchContents, contents_of


class PerStep(NamedTuple):
    """Means over steps of one rank, None where a batch does not tell."""

    samples: float | None
    tokens: float | None


@dataclass
class BatchCount:
    """Counts batches as they come, step by step."""

    steps: list[BatchContents] = field(default_factory=list)
    _batches: list[BatchContents] = field(default_factory=list)

    def counted(self, batch: Any) -> Any:
        """Return the batch, counted in the step that runs."""
        self._batches.append(contents_of(batch))
        return batch

    def end_step(self) -> None:
        """Close the count of one step."""
        samples, tokens = ([b[i] for b in self._batches] for i in (0, 1))
        self.steps.append(BatchContents(_total(samples), _total(tokens)))
        self._batches = []

    def forget_batches(self) -> None:
        """Leave out batches that no step took."""
        self._batches = []

    def per_step(self, steps: Sequence[int] | slice) -> PerStep:
        """Return the means over the steps of these places."""
        chosen = self.steps[steps] if isinstance(steps, slice) else [self.steps[i] for i in steps]
        totals = [_total([step[i] for step in chosen]) for i in (0, 1)]
        return PerStep(*(None if total is None else total / len(chosen) for total in totals))


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
