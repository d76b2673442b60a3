"""What a rank hands to its helper between steps: who it is, its trace, its collectives, samplers' files, its facts.

Files go by way of local disk: the helper takes them to the run folder. Where one cannot be written there, the reason
comes back and training goes on.
"""

import json
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from stepscope.contract.run_folder import SCHEMA, of_window, rank_file, trace_file
from stepscope.record.facts import facts_at_start, facts_of_training
from stepscope.record.groups import FLIGHT_RECORDER, flight_dump, process_groups
from stepscope.record.helper.open_run import OpenRun
from stepscope.record.sampler import Samplers


def introduce(run: OpenRun, *, created_ns: int) -> None:
    """Send what does not change while training runs, and the step log's header."""
    place = run.place
    run.outbox.put({"do": "facts", **facts_at_start(run.config, place, created_ns=created_ns)})
    header = {"schema": SCHEMA, "rank": place.rank, "world_size": place.world_size, "created_ns": created_ns}
    run.outbox.put_step(json.dumps(header))


def hand_over_window(run: OpenRun, outcome: dict[str, Any]) -> dict[str, Any]:
    """Return a window's outcome with the name of its trace, which is on its way; later windows have folders."""
    plain = outcome.pop("plain", None)
    if plain is None:
        return outcome
    number = outcome["window"]
    name = of_window(number, trace_file(run.place.rank))
    run.outbox.put({"do": "trace", "plain": plain, "name": name, "about": {"kind": "trace", "window": number}})
    return {**outcome, "name": name}


def hand_over_collectives(run: OpenRun, window: int) -> str | None:
    """Send the flight recorder's dump after a window, to lie beside its trace.

    Return why that was not possible, None where it was or there is none.
    """
    dump = flight_dump()
    if dump is None:
        return None
    try:
        with tempfile.NamedTemporaryFile(prefix="flight-", dir=run.scratch, delete=False) as raw:
            raw.write(dump)
    except OSError as e:
        return f"the flight recorder's dump could not be written: {e.strerror}"
    name = of_window(window, rank_file(run.place.rank, FLIGHT_RECORDER))
    run.outbox.put({"do": "flight", "plain": raw.name, "name": name, "process_groups": process_groups()})
    return None


def hand_over_files(run: OpenRun, samplers: Samplers, moment: str) -> str | None:
    """Let samplers write files at `moment` and send them; return why that was not possible, None where it was."""
    try:
        folder = Path(tempfile.mkdtemp(prefix="files-", dir=run.scratch))
    except OSError as e:
        return f"the samplers' files could not be written: {e.strerror}"
    samplers.tell(moment, folder, run.place.rank)
    for path in sorted(folder.iterdir()):
        run.outbox.put({"do": "file", "plain": str(path), "name": path.name})
    return None


class JobFacts:
    """What a rank knows of its job beside the steps: noted facts, its windows, and why something is missing."""

    def __init__(self) -> None:
        self.windows: list[dict[str, Any]] = []
        self._noted: dict[str, Any] = {}
        self._reasons: dict[str, str] = {}

    def note(self, facts: Mapping[str, Any]) -> None:
        """Keep facts; the last value of a name wins. Objects are held weakly."""
        for name, value in facts.items():
            is_object = isinstance(value, torch.nn.Module | torch.optim.Optimizer)
            self._noted[name] = weakref.ref(value) if is_object else value

    def noted(self, name: str) -> Any:
        """Return a noted fact, None where there is none or its object is gone."""
        value = self._noted.get(name)
        return value() if isinstance(value, weakref.ref) else value

    def because(self, what: str, reason: str | None) -> None:
        """Keep why something is missing."""
        if reason is not None:
            self._reasons[what] = reason

    def no_longer(self, what: str) -> None:
        """Forget why something was missing: it is there now."""
        self._reasons.pop(what, None)

    def send(self, run: OpenRun, *, window_complete: bool = False) -> None:
        """Send what is known by now; after a window the helper writes it down at once."""
        seen = {name: value() if isinstance(value, weakref.ref) else value for name, value in self._noted.items()}
        run.outbox.put(
            {
                "do": "facts",
                **facts_of_training(seen, world_size=run.place.world_size),
                "windows": self.windows,
                "reasons": {**(seen.get("reasons") or {}), **self._reasons},
                "lines_dropped": run.outbox.dropped,
                "window_complete": window_complete,
            }
        )
