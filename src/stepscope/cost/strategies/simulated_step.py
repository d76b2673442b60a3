"""A simulated step as `stepscope.bench.simulate.step` wrote it: its traffic and its memory."""

from pathlib import Path

from stepscope.cost.strategies.traffic import Traffic
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.side_file import read_side_json

_KIND = "stepscope simulated step"


@dataclass(frozen=True)
class SimulatedStep:
    """What one rank of the simulated job communicated and held."""

    world_size: int
    parameters: int
    traffic: tuple[Traffic, ...]
    peak_bytes: int
    """without workspaces of libraries"""
    peak_when: str
    peak_parts: dict[str, int]
    took_s: float


def load_simulated(path: str | Path) -> SimulatedStep:
    """Return the step in a file of `stepscope.bench.simulate.step`."""
    try:
        document = read_side_json(path).value
        if document["kind"] != _KIND:
            raise ValueError(f"kind {document['kind']!r}")
        memory = document["memory"]
        return SimulatedStep(
            world_size=int(document["world_size"]),
            parameters=int(document["parameters"]),
            traffic=tuple(
                Traffic(c["op"], c["group"], int(c["ranks"]), int(c["count"]), int(c["bytes"]), c["when"])
                for c in document["collectives"]
            ),
            peak_bytes=int(memory["peak_bytes"]),
            peak_when=str(memory["peak_when"]),
            peak_parts={str(k): int(v) for k, v in memory["parts"].items()},
            took_s=float(document["took_s"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError) as error:
        raise InputError(f"{path}: is not a step written by stepscope.bench.simulate: {error!r}") from error
