"""Values of the documents: names stay as they are, times are in milliseconds where the document says so."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.account import account_of
from stepscope.analyze.data_parallel import Bucket, RankBuckets, RankSharding
from stepscope.analyze.kernels import Kernel
from stepscope.analyze.model_parallel import Layer, RankContextParallel, RankExperts, RankTensorParallel
from stepscope.analyze.operators import Operator
from stepscope.analyze.pipeline import RankPipeline
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import TIMES, report_json
from stepscope.document.values import in_ms, ms_or_none, plain
from stepscope.run.load import load
from stepscope.stats.robust import spread

DATA = Path(__file__).parent.parent / "data"


class Colour(Enum):
    RED = 1


@dataclass(frozen=True)
class Inner:
    gap_ns: int
    colour: Colour


@dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, float]


def test_names_and_numbers_stay_as_they_are() -> None:
    record = Outer(Inner(5_000_000, Colour.RED), {"queue_ns": 2.5})
    assert plain(record) == {"inner": {"gap_ns": 5_000_000, "colour": "red"}, "by_name": {"queue_ns": 2.5}}


def test_values_are_those_of_json() -> None:
    value = {1: (np.float64("nan"), float("inf"), 2.0), "set": {3, 1}, "array": np.arange(3), "class": None}
    assert plain(value) == {"1": [None, None, 2.0], "set": [1, 3], "array": [0, 1, 2], "class": None}


def test_an_unknown_time_stays_unknown() -> None:
    assert (ms_or_none(None), ms_or_none(0), ms_or_none(1_500_000)) == (None, 0.0, 1.5)


def test_times_are_written_in_milliseconds_where_they_stood() -> None:
    record = {"rank": 1, "wait_ns": 1_500_000, "busy_ns": None, "at_ns": (1_000_000,), "spread_ns": spread([1e6, 2e6])}
    written = in_ms(record, ("wait", "busy", "at", "spread"))
    spread_ms = {"mean": 1.5, "min": 1.0, "max": 2.0, "std": 0.5, "count": 2}
    assert list(written.items()) == [
        ("rank", 1),
        ("wait_ms", 1.5),
        ("busy_ms", None),
        ("at_ms", [1.0]),
        ("spread_ms", spread_ms),
    ]


RECORDS = [
    ("buckets", "buckets", Bucket),
    ("buckets", "ranks", RankBuckets),
    ("sharding", "ranks", RankSharding),
    ("tensor_parallel", "layers", Layer),
    ("tensor_parallel", "ranks", RankTensorParallel),
    ("pipeline", "ranks", RankPipeline),
    ("experts", "ranks", RankExperts),
    ("context_parallel", "ranks", RankContextParallel),
]


@pytest.mark.parametrize(("view", "part", "record"), RECORDS)
def test_every_time_of_a_strategys_view_is_named(view: str, part: str, record: Any) -> None:
    assert {f"{name}_ns" for name in TIMES[view][part]} == {f.name for f in fields(record) if f.name.endswith("_ns")}


@pytest.fixture(scope="module", params=["gloo-ddp", "gloo-linear", "h200-fsdp2", "h200-pipeline-interleaved"])
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    account = account_of(load(DATA / request.param, cache=False))
    return report_json(account, diagnose(account))


def test_no_time_of_the_report_is_in_nanoseconds(document: dict[str, Any]) -> None:
    assert not [name for name in names_in(document) if "ns" in name.split("_")]


def test_every_field_of_operators_is_written(document: dict[str, Any]) -> None:
    assert list(document["operators"][0]) == [f.name.replace("_ns", "_ms") for f in fields(Operator)]


def test_every_field_of_kernels_is_written() -> None:
    account = account_of(load(DATA / "foreign-mtia", cache=False))
    kernels = report_json(account, diagnose(account))["kernels"]
    assert list(kernels[0]) == [f.name.replace("_ns", "_ms") for f in fields(Kernel)]
    assert kernels[0]["total_ms"] == pytest.approx(account.kernels.kernels[0].total_ns / 1e6, abs=1e-6)


def names_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from names_in(one)
