"""The metrics of one rank on their way to others: an endpoint to scrape, a collector to push to, as the settings ask.

What the two need is imported only where one of them is asked for: the helper stays small.
"""

import contextlib
import http
import http.client
import json
import os
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from stepscope.bounded_server import LOOPBACK, BoundedHandler, BoundedServer
from stepscope.contract.step_line import GRADIENT_SYNC
from stepscope.errors import UsageError
from stepscope.version import __version__

# What the lines of a rank's step log sum to, as metrics: the same numbers for Prometheus and OpenTelemetry.
#
# Each has one name per convention (`stepscope_steps_total`, `stepscope.steps`), a base unit (seconds, bytes) and a
# kind.
# A sum only grows; a gauge is the newest value. What was never in a line is left out, not 0. Each line counts once, so
# at
# any moment the metrics are the sums over the step log up to the line before.

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
    #: in UCUM, as OpenTelemetry has it: s, By, {step}
    unit: str
    help: str


_STEPS = Metric("stepscope.steps", SUM, "{step}", "Training steps that ended.")
_PROFILED = Metric("stepscope.profiled_steps", SUM, "{step}", "Steps that ran under the profiler.")
_DURATION = Metric("stepscope.step.duration", HISTOGRAM, "s", "Time of a step without the profiler.")
_REGION = Metric("stepscope.region.time", SUM, "s", "Time in a region of the step, without regions inside it.")
_OWN_TIME = Metric("stepscope.own.time", SUM, "s", "Steps less the wait for other ranks' gradients, where it is known.")
_OWN_STEPS = Metric("stepscope.own.steps", SUM, "{step}", "Steps that stepscope.own.time is the sum of.")
_STEP = Metric("stepscope.step.number", GAUGE, "{step}", "Number of the last step that ended.")
_STEP_AT = Metric("stepscope.step.timestamp", GAUGE, "s", "When the last step ended, since 1970.")
_HOST_BYTES = Metric("stepscope.memory.host", GAUGE, "By", "Resident memory of the training process.")
_ALLOCATED = Metric("stepscope.memory.allocated", GAUGE, "By", "Device memory held by tensors.")
_RESERVED = Metric("stepscope.memory.reserved", GAUGE, "By", "Device memory held by the allocator.")
_PEAK = Metric("stepscope.memory.peak_allocated", GAUGE, "By", "Most device memory ever held by tensors.")
_RETRIES = Metric("stepscope.memory.allocator_retries", SUM, "{retry}", "Allocations that had to empty the cache.")
_COLLECTIVES = Metric("stepscope.collectives", SUM, "{collective}", "Collectives that were issued.")
_COLLECTIVE_BYTES = Metric("stepscope.collective.size", SUM, "By", "Bytes of collectives, where they are known.")
_SAMPLES = Metric("stepscope.samples", SUM, "{sample}", "Samples of this rank, where its loop tells.")
_TOKENS = Metric("stepscope.tokens", SUM, "{token}", "Tokens of this rank, where its loop tells.")
_FLOPS = Metric("stepscope.flops", SUM, "{flop}", "Floating-point operations of this rank, where they were counted.")
_STALL = Metric("stepscope.stall.duration", GAUGE, "s", "Time without a step, where that is long; 0 otherwise.")

_MEMORY = {"host_bytes": _HOST_BYTES, "allocated_bytes": _ALLOCATED, "reserved_bytes": _RESERVED}
_PEAKS = {"peak_allocated_bytes": _PEAK, "allocator_retries": _RETRIES}
_PER_STEP = {"samples_per_step": _SAMPLES, "tokens_per_step": _TOKENS}


@dataclass(frozen=True)
class Histogram:
    """How many values were up to each bound, all together, and their sum."""

    #: by bucket, not cumulative; the last is of values above all bounds
    counts: tuple[int, ...]
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
            self._per_step[_FLOPS] = flops["total"]

    def line(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the step log; others are passed over."""
        step, dur_ns = line.get("step"), line.get("dur_ns")
        if not _is_count(step) or not _is_count(dur_ns):
            return
        assert isinstance(step, int) and isinstance(dur_ns, int)
        self._add(_STEPS, 1)
        self._gauges[_STEP] = step
        if _is_count(line.get("end_ns")):
            self._gauges[_STEP_AT] = line["end_ns"] / 1e9
        for metric, amount in self._per_step.items():
            self._add(metric, amount)
        if line.get("profiled"):
            self._add(_PROFILED, 1)
        else:
            self._buckets[bisect_left(BUCKETS_S, dur_ns / 1e9)] += 1
            self._total_s += dur_ns / 1e9
        self._add_regions(line.get("regions"), dur_ns, profiled=bool(line.get("profiled")))
        self._add_memory(line.get("memory"))
        self._add_collectives(line.get("collectives"))

    def samples(self, *, stall_s: Callable[[], float] = lambda: 0.0) -> list[Sample]:
        """Return every metric that is known, with its labels and value."""
        found: list[Sample] = [(metric, labels, value) for (metric, labels), value in list(self._sums.items())]
        if _STEP in self._gauges:
            found.append((_DURATION, (), Histogram(tuple(self._buckets), self._total_s)))
        found += [(_REGION, (("region", name),), ns / 1e9) for name, ns in list(self._regions_ns.items())]
        if any(metric is _OWN_STEPS for metric, _, _ in found):
            found.append((_OWN_TIME, (), self._own_ns / 1e9))
        found += [(metric, (), value) for metric, value in list(self._gauges.items())]
        return [*found, (_STALL, (), stall_s())]

    def _add_regions(self, regions: object, dur_ns: int, *, profiled: bool) -> None:
        if not isinstance(regions, Mapping):
            return
        for name, region in regions.items():
            ns = region.get("ns") if isinstance(region, Mapping) else None
            is_known = isinstance(name, str) and (name in self._regions_ns or len(self._regions_ns) < _MAX_REGIONS)
            if is_known and _is_count(ns):
                self._regions_ns[name[:_MAX_NAME]] = self._regions_ns.get(name[:_MAX_NAME], 0) + int(ns or 0)
        waited = regions.get(GRADIENT_SYNC)
        waited_ns = waited.get("ns") if isinstance(waited, Mapping) else None
        if _is_count(waited_ns) and not profiled:
            self._add(_OWN_STEPS, 1)
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
                self._add(_COLLECTIVES, collectives["count"])
            if _is_count(collectives.get("bytes")):
                self._add(_COLLECTIVE_BYTES, collectives["bytes"])

    def _add(self, metric: Metric, amount: int) -> None:
        self._sums[metric, ()] = self._sums.get((metric, ()), 0) + amount


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


_SERVICE = "stepscope"


class Export:
    """Takes lines in and tells them on; `run` is the name of the run's folder, once it has one."""

    def __init__(
        self, settings: Mapping[str, Any], *, rank: int, world_size: int, stall_s: Callable[[], float]
    ) -> None:
        self.run = ""
        self._rank = rank
        self._world_size = world_size
        self._stall_s = stall_s
        self._host = settings.get("host", "")
        self._attempt = str(settings.get("attempt", "0"))
        self._metrics = Metrics()
        self._endpoint: Any = None
        self._push: Any = None
        self._trouble: str | None = None
        try:
            self._start(settings)
        except UsageError as e:  # said before the job started; here it can only be from another launcher
            self._trouble = str(e)

    def line(self, line: Mapping[str, Any]) -> None:
        """Take in one line of the step log."""
        self._metrics.line(line)

    def facts(self, facts: Mapping[str, Any]) -> None:
        """Take in what a rank knows of its job."""
        self._metrics.facts(facts)

    def state(self) -> dict[str, Any]:
        """Return where the metrics are to be had, and what failed; for the rank's facts."""
        return {
            "metrics_url": self._endpoint.url if self._endpoint is not None else None,
            "trouble": self._trouble or _trouble(self._endpoint) or _trouble(self._push),
        }

    def end(self) -> None:
        """Push once more and let go of the port."""
        if self._push is not None:
            self._push.end()
        if self._endpoint is not None:
            self._endpoint.end()

    def _start(self, settings: Mapping[str, Any]) -> None:
        if settings.get("metrics"):
            self._endpoint = Endpoint(settings["metrics"], self._text, local_rank=settings.get("local_rank", 0))
        if settings.get("otlp"):
            self._push = OtlpPush(
                settings["otlp"],
                self._samples,
                resource=self._resource,
                period_s=settings.get("otlp_period_s", 10.0),
            )

    def _samples(self) -> list[Sample]:
        return self._metrics.samples(stall_s=self._stall_s)

    def _text(self) -> str:

        return prometheus_text(self._samples(), labels=(("run", self.run), ("rank", str(self._rank))))

    def _resource(self) -> Labels:
        return (
            ("service.name", _SERVICE),
            ("host.name", self._host),
            ("stepscope.run.name", self.run),
            ("stepscope.rank", str(self._rank)),
            ("stepscope.world_size", str(self._world_size)),
            ("stepscope.attempt", self._attempt),
        )


def _trouble(part: Any) -> str | None:
    found: str | None = part.trouble if part is not None else None
    return found


# Metrics pushed to an OpenTelemetry collector: OTLP over HTTP, as JSON, by the standard library.
#
#     POST http://HOST:4318/v1/metrics        every few seconds, on a thread of the helper process
#
# A collector that is slow, gone or refuses costs its thread a few seconds, and the next push has all sums again. What
# a
# collector wants for a password stands in `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,name=value`), as for other
# programs.

_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
_PATH = "/v1/metrics"
_TIMEOUT_S = 5.0
_LAST_PUSH_S = 1.0
_CUMULATIVE = 2


def otlp_request(samples: Sequence[Sample], *, resource: Labels, start_ns: int, now_ns: int) -> dict[str, Any]:
    """Return the body of an export: these samples of one resource (`service.name`, rank, run)."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample[0], []).append(sample)
    times = {"startTimeUnixNano": str(start_ns), "timeUnixNano": str(now_ns)}
    metrics = [_metric(metric, found, times) for metric, found in by_metric.items()]
    scope = {"scope": {"name": "stepscope", "version": __version__}, "metrics": metrics}
    return {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]}


def _metric(metric: Metric, found: Sequence[Sample], times: Mapping[str, str]) -> dict[str, Any]:
    points = [{**times, "attributes": _attributes(labels), **_value(value)} for _, labels, value in found]
    about = {"name": metric.name, "unit": metric.unit, "description": metric.help}
    if metric.kind == GAUGE:
        return {**about, "gauge": {"dataPoints": points}}
    kind = "histogram" if isinstance(found[0][2], Histogram) else "sum"
    grows = {"isMonotonic": True} if kind == "sum" else {}
    return {**about, kind: {"dataPoints": points, "aggregationTemporality": _CUMULATIVE, **grows}}


def _value(value: float | int | Histogram) -> dict[str, Any]:
    if isinstance(value, Histogram):
        counts = [str(count) for count in value.counts]
        return {
            "count": str(sum(value.counts)),
            "sum": value.total,
            "bucketCounts": counts,
            "explicitBounds": list(BUCKETS_S),
        }
    return {"asInt": str(value)} if isinstance(value, int) else {"asDouble": value}


def _attributes(labels: Labels) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in labels]


def collector_from(url: str) -> tuple[str, int, bool, str]:
    """Return host, port, whether it is HTTPS, and the path of a collector; a `UsageError` where it is none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"--otlp {url!r}: give the collector's address, such as http://localhost:4318")
    path = parts.path.rstrip("/")
    return parts.hostname, port or 4318, parts.scheme == "https", path if path.endswith(_PATH) else path + _PATH


def headers_in(text: str) -> dict[str, str]:
    """Return the headers in `name=value,name=value`; values may be percent-encoded.

    >>> headers_in("api-key=a%20b, x=1,broken")
    {'api-key': 'a b', 'x': '1'}
    """
    pairs = (part.partition("=") for part in text.split(","))
    found = {name.strip(): unquote(value.strip()) for name, sign, value in pairs if sign and name.strip()}
    return {name: value for name, value in found.items() if value.isprintable() and name.isprintable()}


class OtlpPush:
    """Pushes what `samples()` returns, until the process ends; `trouble` is why the last push failed."""

    def __init__(
        self, url: str, samples: Callable[[], Sequence[Sample]], *, resource: Callable[[], Labels], period_s: float
    ) -> None:
        self.trouble: str | None = None
        self._to = collector_from(url)
        self._samples = samples
        self._resource = resource
        self._period_s = period_s
        self._start_ns = time.time_ns()
        self._over = threading.Event()
        self._headers = headers_in(os.environ.get(_HEADERS, ""))
        self._thread = threading.Thread(target=self._push_all, name="otlp", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Push once more; a collector that hangs does not hold up the end of the job."""
        self._over.set()
        self._thread.join(_LAST_PUSH_S)

    def _push_all(self) -> None:
        while True:
            is_last = self._over.wait(self._period_s)
            self._push()
            if is_last:
                return

    def _push(self) -> None:
        host, port, secure, path = self._to
        body = otlp_request(self._samples(), resource=self._resource(), start_ns=self._start_ns, now_ns=time.time_ns())
        make = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = make(host, port, timeout=_TIMEOUT_S)
        try:
            headers = {"Content-Type": "application/json", **self._headers}
            connection.request("POST", path, json.dumps(body).encode(), headers)
            answer = connection.getresponse()
            answer.read(1 << 16)
            self.trouble = None if answer.status < 300 else f"the collector answered {answer.status}"
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.trouble = (
                f"the collector at {host}:{port} did not take the metrics: {getattr(e, 'strerror', None) or e}"
            )
        finally:
            connection.close()


# Metrics as text that Prometheus scrapes: names with their unit, `_total` for what only grows, one line per value.
#
# stepscope.step.duration in s   ->  stepscope_step_duration_seconds_bucket, _sum, _count
# stepscope.collective.size      ->  stepscope_collective_size_bytes_total

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = {"s": "_seconds", "By": "_bytes"}


def _prometheus_name(metric: Metric) -> str:
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return f"{name}_total" if metric.kind == SUM else name


def prometheus_text(samples: Sequence[Sample], *, labels: Labels) -> str:
    """Return the exposition of these samples; `labels` are on every line."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample[0], []).append(sample)
    return "".join(f"{line}\n" for metric, found in by_metric.items() for line in _lines(metric, found, labels))


def _lines(metric: Metric, found: Sequence[Sample], labels: Labels) -> Iterator[str]:
    name = _prometheus_name(metric)
    kind = {SUM: "counter", GAUGE: "gauge"}.get(metric.kind, "histogram")
    yield f"# HELP {name} {_escaped(metric.help)}"
    yield f"# TYPE {name} {kind}"
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
# It is bound to the loopback address unless another is given. Requests are answered on threads of their own, a few at
# a
# time and each within seconds: a scraper that hangs keeps a thread of the helper, and nobody waits for it.

_LOCAL_NAMES = {"localhost", LOOPBACK, "::1"}
_REQUEST_WITHIN_S = 5.0
_MAX_AT_ONCE = 8
_RETRY_S = 1.0
_MAX_TRIES = 120  # the process before an elastic restart may still hold the port


def address_from(text: str) -> tuple[str, int]:
    """Return host and port of `9400`, `:9400` or `0.0.0.0:9400`; a `UsageError` for anything else."""
    host, _, port = text.strip().rpartition(":")
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65_535:
        raise UsageError(f"--metrics {text!r}: give a port such as 9400, or an address such as 0.0.0.0:9400")
    return host.strip("[]") or LOOPBACK, int(port)


class Endpoint:
    """Serves `text()` from now until the process ends; `url` is None until the port is to be had."""

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
        """Let go of the port."""
        self._over.set()
        server = self._server
        if server is not None:
            server.shutdown()
            server.server_close()

    def _serve(self) -> None:
        for _ in range(_MAX_TRIES):
            try:
                self._server = _Server(self._host, self._port, self._text)
                break
            except (OSError, OverflowError) as e:
                self.trouble = f"metrics: {self._host}:{self._port}: {getattr(e, 'strerror', None) or e}"
                if self._over.wait(_RETRY_S):
                    return
        if self._server is not None and not self._over.is_set():
            self.trouble = None
            shown = f"[{self._host}]" if ":" in self._host else self._host
            self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
            self._server.serve_forever(poll_interval=0.5)


class _Server(BoundedServer):
    max_connections = _MAX_AT_ONCE
    request_queue_size = 2 * _MAX_AT_ONCE
    within_s = _REQUEST_WITHIN_S

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
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)


def _is_local(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.strip("[]") in _LOCAL_NAMES
