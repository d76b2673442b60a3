"""TensorBoard's event files: numbers over steps, written without TensorBoard."""

from collections.abc import Iterable, Iterator

from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.dataclass import dataclass


@dataclass(frozen=True)
class Scalar:
    """One number at one step."""

    tag: str
    step: int
    value: float
    wall_s: float
    """when, in seconds since 1970"""


def event_file(scalars: Iterable[Scalar]) -> Iterator[bytes]:
    """Yield an event file with these numbers."""
    listed = sorted(scalars, key=lambda s: (s.wall_s, s.step, s.tag))
    yield version_record(listed[0].wall_s if listed else 0.0)
    for s in listed:
        yield scalars_record(s.step, {s.tag: s.value}, wall_s=s.wall_s)
