"""The numbers of a recorded job while it runs, from the step logs in its run folder: `stepscope record --track WHERE`.

A thread of rank 0 reads what the ranks' helpers have written, every two seconds. The training thread does nothing for
it, and no collective is called: who is late follows from each rank's own time, its step less its wait for gradients.

    step/ms, step/mean_ms       of rank 0, the device's time where it is known
    own_ms/rankN, late_ms/rankN
    throughput/...              samples and tokens of all ranks, where the loader's batches tell
    memory/...                  of rank 0
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from stepscope.contract.live import DEFAULT_WINDOW_STEPS, RankScore, rank_scores
from stepscope.contract.run_folder import steps_file
from stepscope.record.failsafe import explain, say
from stepscope.record.log_tail import LogTail, waited_ns
from stepscope.record.sinks import Sink, sinks_from
from stepscope.record.step_statistics import FIRST_STEPS
from stepscope.record.tracker import alerts_of
from stepscope.units import NS_PER_MS, NS_PER_S

_PERIOD_S = 2.0
_MAX_RANKS_SENT = 16
_MEMORY = {
    "host_bytes": "memory/host_gb",
    "allocated_bytes": "memory/allocated_gb",
    "reserved_bytes": "memory/reserved_gb",
}


class RankSteps:
    """The newest steps of one rank's log, read as it grows."""

    def __init__(self, path: Path, window: int = DEFAULT_WINDOW_STEPS) -> None:
        self.last: Mapping[str, Any] = {}
        self.dur_ns: deque[int] = deque(maxlen=window)
        self.own_ns: deque[int] = deque(maxlen=window)
        self.memory: dict[str, float] = {}
        self._tail, self._waits = LogTail(path), False

    def read(self) -> int:
        """Return how many steps are new."""
        found = self._tail.read()
        for step in found:
            self._take(step)
        return len(found)

    def _take(self, found: Mapping[str, Any]) -> None:
        self.last = found
        if found["step"] < FIRST_STEPS:  # which stand for no others
            return
        self.dur_ns.append(found.get("device_ns") or found["dur_ns"])
        self._take_own(found["dur_ns"], waited_ns(found))
        for name, scalar in _MEMORY.items():
            value = (found.get("memory") or {}).get(name)
            if isinstance(value, int):
                self.memory[scalar] = value / 1e9

    def _take_own(self, dur_ns: int, waited: int | None) -> None:
        if waited is not None and not self._waits:
            self._waits = True
            self.own_ns.clear()  # of steps in which the wait was not measured
        if waited is not None or not self._waits:
            self.own_ns.append(max(0, dur_ns - (waited or 0)))


class RunFollower:
    """A sampler of rank 0; `folder` and `batch` are asked for on its own thread."""

    def __init__(
        self,
        places: Any,
        *,
        folder: Callable[[], Path | None],
        world_size: Callable[[], int],
        batch: Callable[[], Mapping[str, Any]] = dict,
        period_s: float = _PERIOD_S,
    ) -> None:
        self._places, self._folder, self._world_size, self._batch = places, folder, world_size, batch
        self._period_s = period_s
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._ranks: list[RankSteps] = []
        self._sinks: list[Sink] = []
        self._said: set[str] = set()

    def on_step_end(self, step: int) -> dict[str, Any]:
        """Begin with the first step."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="stepscope-track", daemon=True)
            self._thread.start()
        return {}

    def on_close(self, folder: str | Path, rank: int) -> None:
        """Read once more and end."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(timeout=10.0)

    def _watch(self) -> None:
        try:
            folder = self._folder()
            if folder is None:
                return
            self._sinks = sinks_from(self._places)
            self._ranks = [RankSteps(folder / steps_file(rank)) for rank in range(self._world_size())]
            while not self._over.wait(self._period_s):
                self.look()
            self.look()
            for sink in self._sinks:
                sink.close()
        except Exception as e:  # noqa: BLE001 - a thread of ours must not end in a traceback
            say(f"--track is off from here on: {explain(e)}")

    def look(self) -> None:
        """Read what is new, and send the last step's numbers where there is one."""
        new = [rank.read() for rank in self._ranks]
        if not new or not new[0] or not self._ranks[0].dur_ns:
            return
        scores = rank_scores({n: fmean(r.own_ns) / NS_PER_MS for n, r in enumerate(self._ranks) if r.own_ns})
        values, step = self._scalars(scores), int(self._ranks[0].last["step"])
        for sink in self._sinks:
            sink.scalars(step, values)
        times = [ns / NS_PER_MS for ns in self._ranks[0].dur_ns]
        for alert in alerts_of(step, times, late=[s for s in scores if s.straggler]):
            if alert.id not in self._said:
                self._said.add(alert.id)
                say(alert.text)

    def _scalars(self, scores: list[RankScore]) -> dict[str, float]:
        first = self._ranks[0]
        mean_ns = fmean(first.dur_ns)
        values = {"step/ms": first.dur_ns[-1] / NS_PER_MS, "step/mean_ms": mean_ns / NS_PER_MS, **first.memory}
        for name in ("samples", "tokens"):
            count = self._batch().get(f"{name}_per_step")
            if count and mean_ns:
                values[f"throughput/{name}_per_s"] = count * len(self._ranks) * NS_PER_S / mean_ns
        for score in scores[:_MAX_RANKS_SENT]:
            values |= {f"own_ms/rank{score.rank}": score.own_ms, f"late_ms/rank{score.rank}": score.late_ms}
        return values
