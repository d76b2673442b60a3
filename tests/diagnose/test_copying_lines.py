"""Copies to the device that also stop the host are one finding, of their line."""

from pathlib import Path

import pytest
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.test_owned_findings import account, nothing

from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.rules.copying_lines import copying_lines

STAGED_US, COPY_US = 1500.0, 400.0


def copies(r: PlantedRank, at: float, *, stalled_at: str, module: str = "") -> float:
    """A copy at train.py:9, from memory that the host moves first."""
    r.python_time(at, at + STAGED_US, stalled_at)
    at += STAGED_US
    with r.line("train.py:9", module=module), r.op("aten::to", at, at + COPY_US):
        call = "cudaMemcpyAsync"
        r.copy(
            "Memcpy HtoD (Pageable -> Device)", at=at + 2, start=at + 5, end=at + COPY_US - 5, call=call, call_us=390
        )
    return at + COPY_US


def of_one_line(r: PlantedRank, at: float, _: int) -> float:
    return copies(r, at, stalled_at="train.py:9")


def of_two_lines(r: PlantedRank, at: float, _: int) -> float:
    return copies(r, at, stalled_at="train.py:8")


def of_a_module(r: PlantedRank, at: float, _: int) -> float:
    return copies(r, at, stalled_at="train.py:9", module="blocks.0")


def test_copies_and_the_stall_before_them_are_one_finding(tmp_path: Path) -> None:
    found = diagnose(account(tmp_path, late={0: of_one_line})).findings
    first = found[0]
    assert (first.id, first.title) == (
        "host-to-device-copy",
        "train.py:9 copies to the device, and the host stops for it",
    )
    assert first.alone_ns / 1000 == pytest.approx(STAGED_US + COPY_US, rel=0.15)
    assert first.what_if == ("--without", "train.py:9")
    assert not {"host-stall"} & {f.id for f in found}
    assert sum(f.id == "host-to-device-copy" for f in found) == 1


@pytest.mark.parametrize("plant", [nothing, of_two_lines, of_a_module])
def test_what_is_not_of_one_such_line_is_left_to_the_other_rules(tmp_path: Path, plant: object) -> None:
    assert copying_lines(account(tmp_path, late={0: plant})) == []  # type: ignore[dict-item]
