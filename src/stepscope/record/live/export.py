"""Metrics of one rank, on an endpoint that Prometheus scrapes.

Imported only where it is enabled: the helper stays small.
"""

import contextlib
import socket
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer
from stepscope.contract.step_line import waited_ns
from stepscope.errors import UsageError

# Metrics of a rank: sums over its step log so far. What was never in a line is left out, not 0.

SUM, GAUGE, HISTOGRAM = "sum", "gauge", "histogram"
BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MAX_NAME = 100

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Metric:
    """One metric; its name in Prometheus has underscores and the unit."""

    name: str
    kind: str
    #: s, By, J, W; empty for counts
    unit: str
    help: str


_METRICS = {
    name: Metric(f"stepscope.{name}", kind, unit, help)
    for name, kind, unit, help in (
        ("steps", SUM, "", "Training steps that ended."),
        ("profiled_steps", SUM, "", "Steps that ran under the profiler."),
        ("step.duration", HISTOGRAM, "s", "Time of a step without the profiler."),
        ("region.time", SUM, "s", "Time in a region of the step, without regions inside it."),
        ("own.time", SUM, "s", "Steps less the wait for other ranks' gradients, where it is known."),
        ("own.steps", SUM, "", "Steps that stepscope_own_time_seconds_total is the sum of."),
        ("step.number", GAUGE, "", "Number of the last step that ended."),
        ("step.timestamp", GAUGE, "s", "When the last step ended, since 1970."),
        ("memory.host", GAUGE, "By", "Resident memory of the training process."),
        ("memory.allocated", GAUGE, "By", "Device memory held by tensors."),
        ("memory.reserved", GAUGE, "By", "Device memory held by the allocator."),
        ("memory.peak_allocated", GAUGE, "By", "Most device memory ever held by tensors."),
        ("memory.allocator_retries", SUM, "", "Allocations that had to empty the cache."),
        ("collectives", SUM, "", "Collectives that were issued."),
        ("collective.size", SUM, "By", "Bytes of collectives, where they are known."),
        ("samples", SUM, "", "Samples of this rank, if its loop reports them."),
        ("tokens", SUM, "", "Tokens of this rank, if its loop reports them."),
        ("flops", SUM, "", "Floating-point operations of this rank, where they were counted."),
        ("job.attempt", GAUGE, "", "Elastic restarts before this process."),
        (
            "energy",
            SUM,
            "J",
            "Energy of the device since the first step; ranks that share one repeat it.",
        ),
        ("power", GAUGE, "W", "Power of the device at the last reading."),
        ("host.energy", SUM, "J", "Energy of the host's processors by their counters, since the first step."),
        ("stall.duration", GAUGE, "s", "Time without a step, where that is long; 0 otherwise."),
    )
}


@dataclass(frozen=True)
class Histogram:
    """Number of values in each bucket, and their sum."""

    #: by bucket, not cumulative; the last is of values above all bounds
    counts: tuple[int, ...]
    total: float


Value = float | int | Histogram
Sample = tuple[Metric, Labels, Value]


class Metrics:
    """The sums of one rank so far; lines come from one thread, others may read."""

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        self._gauges: dict[str, float | int] = {}
        self._buckets = [0] * (len(BUCKETS_S) + 1)
        self._total_s = 0.0
        self._regions_ns: dict[str, int] = {}
        self._own_ns = 0
        self._per_step: dict[str, int] = {}
        #: the energy so far, once it is measured
        self.reading: Callable[[], Mapping[str, Any]] = dict

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Take in a rank's facts about its job: samples, tokens and operations per step."""
        flops = facts.get("flops")
        found = {
            "samples": facts.get("samples_per_step"),
            "tokens": facts.get("tokens_per_step"),
            "flops": flops.get("total") if isinstance(flops, Mapping) else None,
        }
        self._per_step.update({name: value for name, value in found.items() if _is_count(value)})

    def line(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the step log, its header included; others are passed over."""
        step, dur_ns = line.get("step"), line.get("dur_ns")
        if not _is_count(step) or not _is_count(dur_ns):
            return
        self._add("steps", 1)
        self._gauges["step.number"] = step
        if _is_count(line.get("end_ns")):
            self._gauges["step.timestamp"] = line["end_ns"] / 1e9
        for name, amount in self._per_step.items():
            self._add(name, amount)
        if line.get("profiled"):
            self._add("profiled_steps", 1)
        else:
            self._buckets[bisect_left(BUCKETS_S, dur_ns / 1e9)] += 1
            self._total_s += dur_ns / 1e9
        self._add_regions(_mapping(line.get("regions")))
        waited = waited_ns(line)
        if waited is not None and not line.get("profiled"):
            self._add("own.steps", 1)
            self._own_ns += max(0, dur_ns - waited)
        memory = _mapping(line.get("memory"))
        for name in ("host", "allocated", "reserved"):
            if _is_count(value := memory.get(f"{name}_bytes")):
                self._gauges[f"memory.{name}"] = value
        for name, field in (("peak_allocated", "peak_allocated_bytes"), ("allocator_retries", "allocator_retries")):
            if _is_count(value := memory.get(field)):
                self._gauges[f"memory.{name}"] = max(self._gauges.get(f"memory.{name}", 0), value)
        collectives = _mapping(line.get("collectives"))
        for name, field in (("collectives", "count"), ("collective.size", "bytes")):
            if _is_count(value := collectives.get(field)):
                self._add(name, value)

    def samples(self, *, stall_s: Callable[[], float] = lambda: 0.0) -> list[Sample]:
        """Return every metric that is known, with its labels and value."""
        found: list[tuple[str, Labels, Value]] = [(name, (), value) for name, value in list(self._sums.items())]
        if "step.number" in self._gauges:
            found.append(("step.duration", (), Histogram(tuple(self._buckets), self._total_s)))
        found += [("region.time", (("region", name),), ns / 1e9) for name, ns in list(self._regions_ns.items())]
        if "own.steps" in self._sums:
            found.append(("own.time", (), self._own_ns / 1e9))
        found += [(name, (), value) for name, value in list(self._gauges.items())]
        read = self.reading()
        for name, field, labels in (
            ("energy", "energy_j", (("device", str(read.get("device"))),)),
            ("power", "power_w", (("device", str(read.get("device"))),)),
            ("host.energy", "host_energy_j", ()),
        ):
            if field in read:
                found.append((name, labels, read[field]))
        found.append(("stall.duration", (), stall_s()))
        return [(_METRICS[name], labels, value) for name, labels, value in found]

    def _add_regions(self, regions: Mapping[str, Any]) -> None:
        for name, region in regions.items():
            ns = _mapping(region).get("ns")
            is_known = isinstance(name, str) and (name in self._regions_ns or len(self._regions_ns) < 100)
            if is_known and _is_count(ns):
                self._regions_ns[name[:_MAX_NAME]] = self._regions_ns.get(name[:_MAX_NAME], 0) + ns

    def _add(self, name: str, amount: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + amount


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


class Export:
    """Exports the lines it is given; `run` is the name of the run's folder, once it has one."""

    def __init__(self, settings: Mapping[str, Any], *, rank: int, stall_s: Callable[[], float]) -> None:
        self.run = ""
        self._rank = rank
        self._stall_s = stall_s
        self._attempt = str(settings.get("attempt", "0"))
        self.metrics = Metrics()
        self._endpoint: Endpoint | None = None
        self._trouble: str | None = None
        try:
            self._endpoint = Endpoint(settings["metrics"], self._text, local_rank=settings.get("local_rank", 0))
        except UsageError as e:  # reported before the job started; here it can only be from another launcher
            self._trouble = str(e)

    def state(self) -> dict[str, Any]:
        """Return the address of the metrics, and what failed; for the rank's facts."""
        return {
            "metrics_url": self._endpoint.url if self._endpoint is not None else None,
            "trouble": self._trouble if self._endpoint is None else self._endpoint.trouble,
        }

    def end(self) -> None:
        """Let go of the port."""
        if self._endpoint is not None:
            self._endpoint.end()

    def _text(self) -> str:
        attempt = int(self._attempt) if self._attempt.isascii() and self._attempt.isdigit() else 0
        samples = [*self.metrics.samples(stall_s=self._stall_s), (_METRICS["job.attempt"], (), attempt)]
        return prometheus_text(samples, labels=(("run", self.run), ("rank", str(self._rank))))


# Metrics as text that Prometheus scrapes: names with their unit, `_total` for what only grows, one line per value.
#
# stepscope.step.duration in s   ->  stepscope_step_duration_seconds_bucket, _sum, _count
# stepscope.collective.size      ->  stepscope_collective_size_bytes_total


def prometheus_text(samples: Sequence[Sample], *, labels: Labels) -> str:
    """Return the exposition of these samples; `labels` are on every line."""
    return "".join(
        f"{line}\n" for metric, found in _by_metric(samples).items() for line in _lines(metric, found, labels)
    )


def _by_metric(samples: Sequence[Sample]) -> dict[Metric, list[Sample]]:
    found: dict[Metric, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample[0], []).append(sample)
    return found


def _lines(metric: Metric, found: Sequence[Sample], labels: Labels) -> Iterator[str]:
    unit = {"s": "_seconds", "By": "_bytes", "J": "_joules", "W": "_watts"}.get(metric.unit, "")
    name = metric.name.replace(".", "_") + unit + ("_total" if metric.kind == SUM else "")
    yield f"# HELP {name} {_escaped(metric.help)}"
    yield f"# TYPE {name} {'counter' if metric.kind == SUM else metric.kind}"
    for _, own, value in found:
        if not isinstance(value, Histogram):
            yield f"{name}{_braces((*labels, *own))} {_number(value)}"
            continue
        up_to = 0
        for bound, count in zip((*BUCKETS_S, None), value.counts, strict=True):
            up_to += count
            le = "+Inf" if bound is None else _number(bound)
            yield f"{name}_bucket{_braces((*labels, *own, ('le', le)))} {up_to}"
        yield f"{name}_sum{_braces((*labels, *own))} {_number(value.total)}"
        yield f"{name}_count{_braces((*labels, *own))} {up_to}"


def _braces(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels) + "}" if labels else ""


def _quoted(value: str) -> str:
    return _escaped(value).replace('"', '\\"')


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float | int) -> str:
    return str(value) if isinstance(value, int) else repr(float(value))


# The endpoint that Prometheus scrapes, in the helper process of each rank: GET /metrics and nothing else.
#
# It is bound to the loopback address unless another is given. Requests are answered on separate threads, a few at a
# time and each within seconds: a scraper that hangs blocks one thread of the helper and nothing else.

_LOCAL_NAMES = {"localhost", LOOPBACK, "::1"}
_MAX_AT_ONCE = 8


def address_from(text: str) -> tuple[str, int]:
    """Return host and port of `9400`, `:9400` or `0.0.0.0:9400`; a `UsageError` for anything else."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise UsageError(f"--metrics {text!r}: give a port such as 9400, or an address such as 0.0.0.0:9400")
    return host.strip("[]") or LOOPBACK, int(port)


class Endpoint:
    """Serves `text()` from now until the process ends; `url` is None until the port is open."""

    def __init__(self, address: str, text: Callable[[], str], *, local_rank: int) -> None:
        self.url: str | None = None
        self.trouble: str | None = None
        host, port = address_from(address)
        self._host, self._port = host, port + local_rank if port else 0
        self._text = text
        self._over = threading.Event()
        self._server: _Server | None = None
        threading.Thread(target=self._serve, name="metrics", daemon=True).start()

    def end(self) -> None:
        self._over.set()
        server = self._server
        if server is not None:
            server.shutdown()
            server.server_close()

    def _serve(self) -> None:
        for _ in range(120):
            try:
                self._server = _Server(self._host, self._port, self._text)
                break
            except (OSError, OverflowError) as e:
                self.trouble = f"metrics: {self._host}:{self._port}: {getattr(e, 'strerror', None) or e}"
                if self._over.wait(1.0):
                    return
        if self._server is not None and not self._over.is_set():
            self.trouble = None
            shown = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
            self._server.serve_forever(poll_interval=0.5)


class _Server(BoundedServer):
    max_connections = _MAX_AT_ONCE
    request_queue_size = 2 * _MAX_AT_ONCE
    within_s = 5.0

    def __init__(self, host: str, port: int, text: Callable[[], str]) -> None:
        self.text = text
        self.local_only = host in _LOCAL_NAMES
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Handler)


class _Handler(BoundedHandler):
    server: _Server

    def do_GET(self) -> None:
        if self.server.local_only and not _is_local(self.headers.get("Host", "")):
            self.send_error(421)  # a page in a browser that calls itself another name
        elif self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
        else:
            body = self.server.text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]") in _LOCAL_NAMES
