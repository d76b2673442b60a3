"""Copies to the device that also stop the host are one finding, of their line."""

from pathlib import Path

import pytest
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import Plant, account, nothing

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


def test_tensors_made_on_the_host_inside_a_module_have_their_line(tmp_path: Path) -> None:
    found = diagnose(account(tmp_path, late={0: of_a_module})).findings
    (one,) = [f for f in found if f.title == "Tensors created on the host in every step (train.py:9)"]
    assert one.alone_ns / 1000 == pytest.approx(STAGED_US + COPY_US, rel=0.15)


def moved(*directions: str) -> Plant:
    """Return ten copies of 150 us in each direction at model.py:8 that the host waits for, each before a product."""

    def plant(r: PlantedRank, at: float, _: int) -> float:
        for direction in directions * 10:
            with r.line("train.py:10", "model.py:8", module="blocks.0"), r.op("aten::copy_", at, at + 150):
                r.copy(direction, at=at + 2, start=at + 5, end=at + 145, call="cudaMemcpyAsync", call_us=144)
            with r.line("train.py:10", "model.py:9", module="blocks.0"), r.op("aten::mm", at + 151, at + 158):
                r.kernel("gemm", at=at + 152, start=at + 154, end=at + 158)
            at += 160
        return at

    return plant


def test_state_moved_in_both_directions_is_offloading(tmp_path: Path) -> None:
    down, up = "DtoH (Device -> Pageable)", "HtoD (Pageable -> Device)"
    first = diagnose(account(tmp_path, late={0: moved(down, up)})).findings[0]
    assert first.title == "Offloading moves state between host and device"
    assert first.alone_ns / 1000 == pytest.approx(20 * 150, rel=0.15)
    (tmp_path / "up").mkdir()
    one_way = account(tmp_path / "up", late={0: moved(up)})
    assert not matched(one_way, "host-to-device-copy", "Offloading")
