"""Metrics equal the step log, in the form that Prometheus reads, whatever the other side does."""

import random
import socket
import threading
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from tests.limits import HANG_S

from stepscope.record.live.export import BUCKETS_S, Endpoint, Metrics, prometheus_text

LABELS = (("run", 'a"b\\c\n'), ("rank", "3"))


def log(steps: int) -> list[dict[str, Any]]:
    draw = random.Random(7)
    lines = []
    for step in range(steps):
        regions = {"forward_pass": {"ns": draw.randrange(10**6), "n": 1}}
        if step % 3 == 0:
            regions["gradient_sync"] = {"ns": draw.randrange(10**5), "n": 1}
        line = {"step": step, "dur_ns": draw.randrange(10**6, 10**9), "end_ns": 10**18 + step, "regions": regions}
        line |= {"profiled": step % 10 == 9, "collectives": {"count": 2, "bytes": None if step == 0 else 100}}
        lines.append({**line, "memory": {"host_bytes": 1000 + step, "allocated_bytes": None}})
    return lines


def metrics_of(lines: list[dict[str, Any]]) -> Metrics:
    metrics = Metrics()
    metrics.facts({"tokens_per_step": 7, "samples_per_step": None, "flops": {"total": 10}})
    metrics.line({"schema": 1, "rank": 3})  # the header
    for line in lines:
        metrics.line(line)
    return metrics


def values(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        line.rpartition(" ")[0].replace('run="a\\"b\\\\c\\n",rank="3"', "*"): float(line.split()[-1]) for line in lines
    }


def test_metrics_are_the_sums_over_the_log() -> None:
    lines = log(50)
    text = prometheus_text(metrics_of(lines).samples(), labels=LABELS)
    found, own = values(text), [line for line in lines if not line["profiled"]]
    assert found["stepscope_steps_total{*}"] == 50 and found["stepscope_profiled_steps_total{*}"] == 5
    assert found["stepscope_tokens_total{*}"] == 350 and found["stepscope_flops_total{*}"] == 500
    assert found["stepscope_collectives_total{*}"] == 100 and found["stepscope_collective_size_bytes_total{*}"] == 4900
    assert found["stepscope_memory_host_bytes{*}"] == 1049 and "stepscope_memory_allocated_bytes{*}" not in found
    for name in ("forward_pass", "gradient_sync"):
        total = sum(line["regions"].get(name, {"ns": 0})["ns"] for line in lines)
        assert found[f'stepscope_region_time_seconds_total{{*,region="{name}"}}'] == pytest.approx(total / 1e9)
    told = [line for line in own if "gradient_sync" in line["regions"]]
    assert found["stepscope_own_steps_total{*}"] == len(told)
    own_ns = sum(line["dur_ns"] - line["regions"]["gradient_sync"]["ns"] for line in told)
    assert found["stepscope_own_time_seconds_total{*}"] == pytest.approx(own_ns / 1e9)
    assert found["stepscope_step_duration_seconds_count{*}"] == len(own)
    assert found["stepscope_step_duration_seconds_sum{*}"] == pytest.approx(sum(line["dur_ns"] for line in own) / 1e9)
    for bound in BUCKETS_S:
        up_to = sum(line["dur_ns"] / 1e9 <= bound for line in own)
        assert found[f'stepscope_step_duration_seconds_bucket{{*,le="{bound}"}}'] == up_to


@pytest.fixture
def endpoint() -> Any:
    made = Endpoint("0", lambda: "x 1\n", local_rank=5)
    while made.url is None:
        threading.Event().wait(0.01)
    yield made
    made.end()


def status_of(url: str, **headers: str) -> int:
    try:
        with urlopen(Request(url, headers=headers), timeout=HANG_S) as answer:
            return int(answer.status)
    except HTTPError as e:
        return e.code


def test_endpoint_answers_beside_clients_that_hang(endpoint: Endpoint) -> None:
    assert endpoint.url is not None and endpoint.url.startswith("http://127.0.0.1:")
    port = int(endpoint.url.split(":")[2].partition("/")[0])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    with urlopen(endpoint.url, timeout=HANG_S) as answer:
        assert answer.read() == b"x 1\n" and answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    for one in silent:
        one.close()
    assert status_of(endpoint.url.replace("/metrics", "/")) == 404
    assert status_of(endpoint.url, Host="evil.example") == 421
    assert status_of(endpoint.url, Host="localhost:9400") == 200


def test_port_that_is_taken_is_said(endpoint: Endpoint) -> None:
    assert endpoint.url is not None
    second = Endpoint(endpoint.url.split("/")[2], str, local_rank=0)
    while second.trouble is None:
        threading.Event().wait(0.01)
    second.end()
    assert second.url is None and "127.0.0.1" in second.trouble
