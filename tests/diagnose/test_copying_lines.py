"""Copies to the device that also stop the host are one finding, of their line."""

from pathlib import Path

import pytest
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import account, nothing

from stepscope.diagnose.findings import diagnose

STAGED_US, COPY_US = 1500.0, 900.0


def copies(r: PlantedRank, at: float, *, module: str = "", staged: float = STAGED_US, copy: float = COPY_US) -> float:
    """A copy at train.py:9, after Python of the same line."""
    r.python_time(at, at + staged, "train.py:9")
    at += staged
    with r.line("train.py:9", module=module), r.op("aten::to", at, at + copy):
        call = "cudaMemcpyAsync"
        r.copy("HtoD (Pageable -> Device)", at=at + 2, start=at + 5, end=at + copy - 5, call=call, call_us=copy - 10)
    return at + copy


def of_one_line(r: PlantedRank, at: float, _: int) -> float:
    return copies(r, at)


def of_a_module(r: PlantedRank, at: float, _: int) -> float:
    return copies(r, at, module="blocks.0")


def of_what_python_made(r: PlantedRank, at: float, _: int) -> float:
    """A line that computes for long and copies a little: the copy is not what stops the host."""
    return copies(r, at, copy=COPY_US / 3)


def test_copies_and_the_stall_before_them_are_one_finding(tmp_path: Path) -> None:
    found = diagnose(account(tmp_path, late={0: of_one_line})).findings
    first = found[0]
    assert (first.id, first.title) == ("host-to-device-copy", "Copies to the device stall the host (train.py:9)")
    assert first.alone_ns / 1000 == pytest.approx(STAGED_US + COPY_US, rel=0.15)
    assert first.what_if == ("--without", "train.py:9")
    assert not {"host-stall"} & {f.id for f in found}
    assert sum(f.id == "host-to-device-copy" for f in found) == 1


@pytest.mark.parametrize("plant", [nothing, of_a_module, of_what_python_made])
def test_what_is_not_of_one_such_line_is_left_to_the_other_rules(tmp_path: Path, plant: object) -> None:
    found = account(tmp_path, late={0: plant})  # type: ignore[dict-item]
    assert matched(found, "host-to-device-copy", "stall the host") == []
