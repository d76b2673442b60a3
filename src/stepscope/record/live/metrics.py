"""What the lines of a rank's step log sum to, as metrics: the same numbers for Prometheus and OpenTelemetry.

Each has one name per convention (`stepscope_steps_total`, `stepscope.steps`), a base unit (seconds, bytes) and a kind.
A sum only grows; a gauge is the newest value. What was never in a line is left out, not 0. Each line counts once, so at
any moment the metrics are the sums over the step log up to the line before.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stepscope.contract.step_line import GRADIENT_SYNC

SUM, GAUGE, HISTOGRAM = "sum", "gauge", "histogram"
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MAX_REGIONS = 100
_MAX_NAME = 100

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """One metric by its OpenTelemetry name; `prometheus.prometheus_name` has the other."""

    name: str
    kind: str
    unit: str
    """in UCUM, as OpenTelemetry has it: s, By, {step}"""
    help: str


STEPS = Metric("stepscope.steps", SUM, "{step}", "Training steps that ended.")
PROFILED = Metric("stepscope.profiled_steps", SUM, "{step}", "Steps that ran under the profiler.")
DURATION = Metric("stepscope.step.duration", HISTOGRAM, "s", "Time of a step without the profiler.")
REGION = Metric("stepscope.region.time", SUM, "s", "Time in a region of the step, without regions inside it.")
OWN_TIME = Metric("stepscope.own.time", SUM, "s", "Steps less the wait for other ranks' gradients, where it is known.")
OWN_STEPS = Metric("stepscope.own.steps", SUM, "{step}", "Steps that stepscope.own.time is the sum of.")
STEP = Metric("stepscope.step.number", GAUGE, "{step}", "Number of the last step that ended.")
STEP_AT = Metric("stepscope.step.timestamp", GAUGE, "s", "When the last step ended, since 1970.")
HOST_BYTES = Metric("stepscope.memory.host", GAUGE, "By", "Resident memory of the training process.")
ALLOCATED = Metric("stepscope.memory.allocated", GAUGE, "By", "Device memory held by tensors.")
RESERVED = Metric("stepscope.memory.reserved", GAUGE, "By", "Device memory held by the allocator.")
PEAK = Metric("stepscope.memory.peak_allocated", GAUGE, "By", "Most device memory ever held by tensors.")
RETRIES = Metric("stepscope.memory.allocator_retries", SUM, "{retry}", "Allocations that had to empty the cache.")
COLLECTIVES = Metric("stepscope.collectives", SUM, "{collective}", "Collectives that were issued.")
COLLECTIVE_BYTES = Metric("stepscope.collective.size", SUM, "By", "Bytes of collectives, where they are known.")
SAMPLES = Metric("stepscope.samples", SUM, "{sample}", "Samples of this rank, where its loop tells.")
TOKENS = Metric("stepscope.tokens", SUM, "{token}", "Tokens of this rank, where its loop tells.")
FLOPS = Metric("stepscope.flops", SUM, "{flop}", "Floating-point operations of this rank, where they were counted.")
STALL = Metric("stepscope.stall.duration", GAUGE, "s", "Time without a step, where that is long; 0 otherwise.")

_MEMORY = {"host_bytes": HOST_BYTES, "allocated_bytes": ALLOCATED, "reserved_bytes": RESERVED}
_PEAKS = {"peak_allocated_bytes": PEAK, "allocator_retries": RETRIES}
_PER_STEP = {"samples_per_step": SAMPLES, "tokens_per_step": TOKENS}


@dataclass(frozen=True)
class Histogram:
    """How many values were up to each bound, all together, and their sum."""

    counts: tuple[int, ...]
    """by bucket, not cumulative; the last is of values above all bounds"""
    total: float


Value = float | int | Histogram
Sample = tuple[Metric, Labels, Value]


class Metrics:
    """The sums of one rank so far; lines come from one thread, others may read."""

    def __init__(self) -> None:
        self._sums: dict[tuple[Metric, Labels], float | int] = {}
        self._gauges: dict[Metric, float | int] = {}
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._total_s = 0.0
        self._regions_ns: dict[str, int] = {}
        self._own_ns = 0
        self._per_step: dict[Metric, int] = {}

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Take in what a rank knows of its job: what one step has of samples, tokens and operations."""
        for name, metric in _PER_STEP.items():
            if _is_count(facts.get(name)):
                self._per_step[metric] = facts[name]
        flops = facts.get("flops")
        if isinstance(flops, Mapping) and _is_count(flops.get("total")):
            self._per_step[FLOPS] = flops["total"]

    def line(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the step log; others are passed over."""
        step, dur_ns = line.get("step"), line.get("dur_ns")
        if not _is_count(step) or not _is_count(dur_ns):
            return
        assert isinstance(step, int) and isinstance(dur_ns, int)
        self._add(STEPS, 1)
        self._gauges[STEP] = step
        if _is_count(line.get("end_ns")):
            self._gauges[STEP_AT] = line["end_ns"] / 1e9
        for metric, amount in self._per_step.items():
            self._add(metric, amount)
        if line.get("profiled"):
            self._add(PROFILED, 1)
        else:
            self._buckets[bisect_left(BUCKETS_S, dur_ns / 1e9)] += 1
            self._total_s += dur_ns / 1e9
        self._add_regions(line.get("regions"), dur_ns, profiled=bool(line.get("profiled")))
        self._add_memory(line.get("memory"))
        self._add_collectives(line.get("collectives"))

    def samples(self, *, stall_s: Callable[[], float] = lambda: 0.0) -> list[Sample]:
        """Return every metric that is known, with its labels and value."""
        found: list[Sample] = [(metric, labels, value) for (metric, labels), value in list(self._sums.items())]
        if STEP in self._gauges:
            found.append((DURATION, (), Histogram(tuple(self._buckets), self._total_s)))
        found += [(REGION, (("region", name),), ns / 1e9) for name, ns in list(self._regions_ns.items())]
        if any(metric is OWN_STEPS for metric, _, _ in found):
            found.append((OWN_TIME, (), self._own_ns / 1e9))
        found += [(metric, (), value) for metric, value in list(self._gauges.items())]
        return [*found, (STALL, (), stall_s())]

    def _add_regions(self, regions: object, dur_ns: int, *, profiled: bool) -> None:
        if not isinstance(regions, Mapping):
            return
        for name, time in regions.items():
            ns = time.get("ns") if isinstance(time, Mapping) else None
            is_known = isinstance(name, str) and (name in self._regions_ns or len(self._regions_ns) < _MAX_REGIONS)
            if is_known and _is_count(ns):
                self._regions_ns[name[:_MAX_NAME]] = self._regions_ns.get(name[:_MAX_NAME], 0) + int(ns or 0)
        waited = regions.get(GRADIENT_SYNC)
        waited_ns = waited.get("ns") if isinstance(waited, Mapping) else None
        if _is_count(waited_ns) and not profiled:
            self._add(OWN_STEPS, 1)
            self._own_ns += dur_ns - int(waited_ns or 0)

    def _add_memory(self, memory: object) -> None:
        if isinstance(memory, Mapping):
            for name, metric in _MEMORY.items():
                if _is_count(memory.get(name)):
                    self._gauges[metric] = memory[name]
            for name, metric in _PEAKS.items():
                if _is_count(memory.get(name)):
                    self._gauges[metric] = max(self._gauges.get(metric, 0), memory[name])

    def _add_collectives(self, collectives: object) -> None:
        if isinstance(collectives, Mapping):
            if _is_count(collectives.get("count")):
                self._add(COLLECTIVES, collectives["count"])
            if _is_count(collectives.get("bytes")):
                self._add(COLLECTIVE_BYTES, collectives["bytes"])

    def _add(self, metric: Metric, amount: int) -> None:
        self._sums[metric, ()] = self._sums.get((metric, ()), 0) + amount


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
