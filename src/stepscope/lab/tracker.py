"""`stepscope.PerformanceTracker`: throughput, MFU, memory and alerts, step by step, in a loop of one's own.

    tracker = stepscope.PerformanceTracker(flops_per_token=6e9, peak_tflops=989, log_to="tensorboard:runs/a")
    for batch in loader:
        ...
        optimizer.step()
        tracker.step(batch)                   # or step(samples=32, tokens=8192)
    tracker.close(report="report.html")

Nothing waits for the device: where it runs ahead of the host a single step's time is the host's, and the mean of the
window is right. What is not known is left out, and `why_not` says why.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import IO, Any

import torch

from stepscope.contract.lateness import LateRank
from stepscope.contract.tensorboard import scalars_record, version_record
from stepscope.errors import UsageError
from stepscope.record.batch_contents import contents_of
from stepscope.record.failsafe import explain, say
from stepscope.record.memory import device_stats, host_bytes
from stepscope.record.straggler_detector import StragglerDetector
from stepscope.side_file import refuse_output

# share by which the window's second half may be slower than its first
SLOWER = 0.10


@dataclass(frozen=True)
class Alert:
    """One problem to check."""

    #: long-step, slower, memory or straggler
    id: str
    step: int
    text: str


class PerformanceTracker:
    """One per rank; counts per step are of this rank, and `world_size` makes them the job's where it is given.

    `flops_per_step` or `flops_per_token` are the model's on this rank, `peak_tflops` its device's peak. `log_to` is a
    place for scalars (`tensorboard:DIR`, a function) or a list of them; `on_alert` is called with each new alert.
    """

    def __init__(
        self,
        *,
        window: int = 100,
        flops_per_step: float | None = None,
        flops_per_token: float | None = None,
        peak_tflops: float | None = None,
        world_size: int = 1,
        log_to: Any = None,
        log_every: int = 1,
        detector: StragglerDetector | None = None,
        on_alert: Callable[[Alert], Any] | None = None,
        slower: float = SLOWER,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if window < 1 or log_every < 1:
            raise UsageError(f"window and log_every have to be at least 1, not {window} and {log_every}")
        self.steps = 0
        self.alerts: list[Alert] = []
        self.why_not: dict[str, str] = {}
        self._flops = (flops_per_step, flops_per_token)
        self._peak_tflops, self._world_size = peak_tflops, world_size
        given = log_to if isinstance(log_to, list | tuple) else [] if log_to is None else [log_to]
        self._sinks = [TensorBoard(one) if isinstance(one, str) else one for one in given]
        self._log_every, self._detector, self._on_alert, self._slower = log_every, detector, on_alert, slower
        self._clock = clock
        self._last_s = clock()
        self._window: deque[tuple[float, int | None, int | None]] = deque(maxlen=window)
        self._memory: dict[str, float] = {}
        self._memory_share: float | None = None
        self._next_look_s = 0.0
        self._said: set[str] = set()

    def step(
        self, batch: Any = None, *, samples: int | None = None, tokens: int | None = None, **scalars: float
    ) -> dict[str, float]:
        """End a step and return its scalars; `batch` is what it was fed, other numbers (loss=...) are passed on."""
        now_s = self._clock()
        if batch is not None:
            found = contents_of(batch)
            samples, tokens = samples or found.samples, tokens or found.tokens
        self._window.append((now_s - self._last_s, samples, tokens))
        self._last_s = now_s
        self.steps += 1
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + 0.1
            self._look_at_memory()
        values = {**self.scalars(), **{name: float(value) for name, value in scalars.items()}}
        self._tell(values)
        return values

    update = step

    def start_step(self) -> None:
        """Begin a step here, where what was done since the last one is not part of it."""
        self._last_s = self._clock()

    def end_step(self, batch_size: Any = None, **more: Any) -> dict[str, float]:
        """End a step of this number of samples, or of this batch, and return its scalars as `step` does.

        `step_time_ms` and `throughput` (samples per second of all ranks) are of this step, `memory_gb` is the peak
        allocated on the device, or on a host alone its memory.
        """
        samples = batch_size if isinstance(batch_size, int) else None
        values = self.step(batch_size if samples is None else None, **{"samples": samples, **more})
        seconds, counted, _ = self._window[-1]
        values["step_time_ms"] = 1e3 * seconds
        if counted is not None and seconds > 0:
            values["throughput"] = self._world_size * counted / seconds
        memory = self._memory.get("memory/peak_allocated_gb", self._memory.get("memory/host_gb"))
        return values if memory is None else {**values, "memory_gb": memory}

    def scalars(self) -> dict[str, float]:
        """Return the numbers of the window so far, by name."""
        if not self._window:
            return {}
        total_s = sum(seconds for seconds, _, _ in self._window)
        found = {"step/ms": 1e3 * self._window[-1][0], "step/mean_ms": 1e3 * total_s / len(self._window)}
        for name, at in (("samples", 1), ("tokens", 2)):
            counts = [one[at] for one in self._window]
            if total_s > 0 and all(count is not None for count in counts):
                found[f"throughput/{name}_per_s"] = self._world_size * sum(c or 0 for c in counts) / total_s
            else:
                self.why_not[f"{name}_per_s"] = f"not found in the batches; give step({name}=...)"
        if (mfu := self._mfu(total_s)) is not None:
            found["efficiency/mfu"] = mfu
        found |= self._memory
        if self._detector is not None:
            found |= {f"late_ms/rank{s.rank}": s.late_ms for s in self._detector.scores()[:16]}
        return found

    def summary(self) -> dict[str, Any]:
        """Return the window's numbers, how many steps there were, the alerts, and why numbers are missing."""
        return {"steps": self.steps, **self.scalars(), "alerts": [a.text for a in self.alerts], "why_not": self.why_not}

    def close(self, *, report: str | Path | Iterable[str | Path] | None = None) -> dict[str, Any]:
        """Return the summary after handing over the report, if there is one, and ending the sinks."""
        files = [report] if isinstance(report, str | Path) else list(report or ())
        for sink in (one for one in self._sinks if isinstance(one, TensorBoard)):
            for path in files:
                self._safely(lambda sink=sink, path=path: sink.artefact(path))  # type: ignore[misc]
            self._safely(sink.close)
        self._sinks = []
        if self._detector is not None:
            self._detector.close()
        return self.summary()

    def __enter__(self) -> "PerformanceTracker":
        self._last_s = self._clock()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _mfu(self, total_s: float) -> float | None:
        per_step, per_token = self._flops
        tokens = [count for _, _, count in self._window]
        if per_step is None and per_token is not None and all(count is not None for count in tokens):
            flops: float | None = per_token * sum(count or 0 for count in tokens)
        else:
            flops = per_step * len(self._window) if per_step is not None else None
        if flops is None or self._peak_tflops is None or total_s <= 0:
            self.why_not["mfu"] = "give peak_tflops, and flops_per_step or flops_per_token with tokens that are known"
            return None
        self.why_not.pop("mfu", None)
        return flops / total_s / (self._peak_tflops * 1e12)

    def _look_at_memory(self) -> None:
        host = host_bytes()
        self._memory = {"memory/host_gb": host / 1e9} if host is not None else {}
        if stats := device_stats():
            reserved = int(stats["reserved_bytes"]["all"]["current"])
            total = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
            self._memory_share = reserved / total
            self._memory |= {
                "memory/allocated_gb": int(stats["allocated_bytes"]["all"]["current"]) / 1e9,
                "memory/peak_allocated_gb": int(stats["allocated_bytes"]["all"]["peak"]) / 1e9,
                "memory/reserved_gb": reserved / 1e9,
            }

    def _tell(self, values: dict[str, float]) -> None:
        if self.steps % self._log_every == 0:
            for sink in list(self._sinks):
                if not self._safely(lambda sink=sink: sink(self.steps - 1, values)):  # type: ignore[misc]
                    self._sinks.remove(sink)
        late = self._detector.stragglers() if self._detector is not None else []
        times_ms = [1e3 * seconds for seconds, _, _ in self._window]
        found = alerts_of(self.steps - 1, times_ms, memory_share=self._memory_share, late=late, slower=self._slower)
        for alert in found:
            if alert.id == "long-step" or alert.id not in self._said:
                self._said.add(alert.id)
                self.alerts.append(alert)
                if self._on_alert is not None:
                    self._on_alert(alert)
        self._said &= {alert.id for alert in found}  # an alert that ended may be raised again

    def _safely(self, act: Callable[[], Any]) -> bool:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - training comes first
            say(f"a place for scalars is off from here on: {explain(e)}")
            return False
        return True


class TensorBoard:
    """An event file in the folder of `tensorboard:DIR`, written without TensorBoard; each call reaches the disk."""

    def __init__(self, place: str) -> None:
        kind, _, name = place.partition(":")
        if kind != "tensorboard" or not name:
            raise UsageError(f"{place!r} is no place for scalars; use tensorboard:DIR, or a function")
        self._folder = Path(name).absolute()
        self._folder.mkdir(parents=True, exist_ok=True)
        self.path = self._folder / f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.{os.getpid()}"
        refuse_output(self.path)
        self._file: IO[bytes] = self.path.open("ab")
        self._write(version_record(time.time()))

    def __call__(self, step: int, values: Mapping[str, float]) -> None:
        self._write(scalars_record(step, values, wall_s=time.time()))

    def artefact(self, path: str | Path) -> None:
        """Copy the file next to the event file: TensorBoard has no artefacts."""
        target = self._folder / Path(path).name
        if target.absolute() != Path(path).absolute():
            refuse_output(target)
            target.write_bytes(Path(path).read_bytes())

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _write(self, record: bytes) -> None:
        self._file.write(record)
        self._file.flush()


# What in a window of steps is worth a word: pure rules over what was measured.


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
