"""A recorded run followed while it grows: its scalars in other places, and what its steps give reason to say."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from stepscope.contract.lateness import DEFAULT_WINDOW_STEPS, LateRank, late_ranks, lateness, own_times
from stepscope.contract.run_folder import steps_file
from stepscope.contract.step_line import FIRST_STEPS, times_of_lines
from stepscope.contract.step_log import GrowingLog
from stepscope.record.failsafe import explain, say
from stepscope.record.sinks import Sink, sinks_from
from stepscope.units import NS_PER_S, ms


class RankSteps:
    """The newest steps of one rank's log, read as it grows."""

    def __init__(self, path: Path, window: int = DEFAULT_WINDOW_STEPS) -> None:
        self.lines: deque[Mapping[str, Any]] = deque(maxlen=window)
        self.memory: dict[str, float] = {}
        self._tail = GrowingLog(path)

    def read(self) -> int:
        """Return how many steps are new."""
        found = self._tail.read()
        self.lines.extend(found)
        for line in found:
            for name in ("host", "allocated", "reserved"):
                value = (line.get("memory") or {}).get(f"{name}_bytes")
                if isinstance(value, int):
                    self.memory[f"memory/{name}_gb"] = value / 1e9
        return len(found)

    @property
    def dur_ns(self) -> list[int]:
        return [x.get("device_ns") or x["dur_ns"] for x in self.lines if x["step"] >= FIRST_STEPS]


class RunFollower:
    """A sampler of rank 0; `folder` and `batch` are called on its own thread."""

    def __init__(
        self,
        places: Any,
        *,
        folder: Callable[[], Path | None],
        world_size: Callable[[], int],
        batch: Callable[[], Mapping[str, Any]] = dict,
        period_s: float = 2.0,
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
        known = None
        if all(rank.lines for rank in self._ranks):
            known = own_times({n: times_of_lines(rank.lines) for n, rank in enumerate(self._ranks)})
        judged = [] if known is None else lateness(known[1])
        values, step = self._scalars(judged), int(self._ranks[0].lines[-1]["step"])
        for sink in self._sinks:
            sink.scalars(step, values)
        times = [ms(ns) for ns in self._ranks[0].dur_ns]
        for alert in alerts_of(step, times, late=late_ranks(judged)):
            if alert.id not in self._said:
                self._said.add(alert.id)
                say(alert.text)

    def _scalars(self, judged: Sequence[LateRank]) -> dict[str, float]:
        first = self._ranks[0]
        dur_ns = first.dur_ns
        mean_ns = fmean(dur_ns)
        values = {"step/ms": ms(dur_ns[-1]), "step/mean_ms": ms(mean_ns), **first.memory}
        for name in ("samples", "tokens"):
            count = self._batch().get(f"{name}_per_step")
            if count and mean_ns:
                values[f"throughput/{name}_per_s"] = count * len(self._ranks) * NS_PER_S / mean_ns
        for one in sorted(judged, key=lambda one: -one.late_ns)[:16]:
            values |= {f"own_ms/rank{one.rank}": one.own_ms, f"late_ms/rank{one.rank}": one.late_ms}
        return values


# What in a window of steps is worth a word: pure rules over what was measured.

# share by which the window's second half may be slower than its first
SLOWER = 0.10


@dataclass(frozen=True)
class Alert:
    """One problem to check."""

    #: long-step, slower, memory or straggler
    id: str
    step: int
    text: str


def alerts_of(
    step: int,
    times_ms: Sequence[float],
    *,
    memory_share: float | None = None,
    late: Sequence[LateRank] = (),
    slower: float = SLOWER,
) -> list[Alert]:
    """Return what the last step and its window give reason to say; `times_ms` ends with the last step."""
    found = []
    if len(times_ms) >= 20:
        usual = median(times_ms)
        if times_ms[-1] > 2.0 * usual:
            found.append(Alert("long-step", step, f"step {step} took {times_ms[-1]:.1f} ms, usually {usual:.1f} ms"))
        half = len(times_ms) // 2
        first, second = median(times_ms[:half]), median(times_ms[half:])
        if first > 0 and second > (1 + slower) * first:
            found.append(Alert("slower", step, f"steps take {second / first - 1:.0%} longer than {half} steps ago"))
    if memory_share is not None and memory_share >= 0.95:
        found.append(Alert("memory", step, f"{memory_share:.0%} of the device's memory are reserved"))
    found += [
        Alert("straggler", step, f"rank {s.rank} is {s.late_ms:.1f} ms late, {s.slowdown:.2f} times the others' time")
        for s in late
    ]
    return found
