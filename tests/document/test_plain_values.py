"""Values of the documents: names stay as they are, times are in milliseconds where the document says so."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.account import account_of
from stepscope.analyze.kernels.kernels import Kernel
from stepscope.analyze.kernels.operators import Operator
from stepscope.diagnose.findings import diagnose
from stepscope.document.plain_values import ms_or_none, plain
from stepscope.document.report import report_json
from stepscope.run.load import load

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


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    account = account_of(load(DATA / "gloo-ddp", cache=False))
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
