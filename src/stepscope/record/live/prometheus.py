"""Metrics as text that Prometheus scrapes: names with their unit, `_total` for what only grows, one line per value.

stepscope.step.duration in s   ->  stepscope_step_duration_seconds_bucket, _sum, _count
stepscope.collective.size      ->  stepscope_collective_size_bytes_total
"""

from collections.abc import Iterator, Sequence

from stepscope.record.live.metrics import BUCKETS_S, GAUGE, SUM, Histogram, Labels, Metric, Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_UNITS = {"s": "_seconds", "By": "_bytes"}


def prometheus_name(metric: Metric) -> str:
    """Return the metric's name by Prometheus's conventions."""
    name = metric.name.replace(".", "_") + _UNITS.get(metric.unit, "")
    return f"{name}_total" if metric.kind == SUM else name


def prometheus_text(samples: Sequence[Sample], *, labels: Labels) -> str:
    """Return the exposition of these samples; `labels` are on every line."""
    by_metric: dict[Metric, list[Sample]] = {}
    for sample in samples:
        by_metric.setdefault(sample[0], []).append(sample)
    return "".join(f"{line}\n" for metric, found in by_metric.items() for line in _lines(metric, found, labels))


def _lines(metric: Metric, found: Sequence[Sample], labels: Labels) -> Iterator[str]:
    name = prometheus_name(metric)
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
