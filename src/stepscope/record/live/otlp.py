"""Metrics pushed to an OpenTelemetry collector: OTLP over HTTP, as JSON, by the standard library.

    POST http://HOST:4318/v1/metrics        every few seconds, on a thread of the helper process

A collector that is slow, gone or refuses costs its thread a few seconds, and the next push has all sums again. What a
collector wants for a password stands in `OTEL_EXPORTER_OTLP_HEADERS` (`name=value,name=value`), as for other programs.
"""

import http.client
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

from stepscope.errors import UsageError
from stepscope.record.live.metrics import BUCKETS_S, GAUGE, Histogram, Labels, Metric, Sample
from stepscope.version import __version__

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
