"""Copies to the device that also stop the host are one finding, of their line."""

import pytest
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import Plant, account

from stepscope.diagnose.findings import diagnose

STAGED_US, COPY_US = 1500.0, 900.0


def copies(r: PlantedRank, at: float, *, module: str = "") -> float:
    """A copy at train.py:9, after Python of the same line."""
    r.python_time(at, at + STAGED_US, "train.py:9")
    at += STAGED_US
    with r.line("train.py:9", module=module), r.op("aten::to", at, at + COPY_US):
        r.copy("HtoD (Pageable -> Device)", at=at + 2, start=at + 5, end=at + COPY_US - 5, call_us=COPY_US - 10)
    return at + COPY_US


def test_copies_and_the_stall_before_them_are_one_finding(tmp_path):
    found = diagnose(account(tmp_path, late={0: lambda r, at, _: copies(r, at)})).findings
    (one,) = [f for f in found if f.id == "host-work"]
    assert one.title.startswith("Preparing the model's input in every step") and one.where[0].text == "train.py:9"
    assert one.alone_ns / 1000 == pytest.approx(STAGED_US + COPY_US, rel=0.15)
    assert one.low_ns / 1000 >= STAGED_US, "the host's part can be done in the loader"
    assert one.what_if == ("--without", "train.py:9")


def test_tensors_made_on_the_host_inside_a_module_have_their_line(tmp_path):
    found = diagnose(account(tmp_path, late={0: lambda r, at, _: copies(r, at, module="blocks.0")})).findings
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


def test_state_moved_in_both_directions_is_offloading(tmp_path):
    down, up = "DtoH (Device -> Pageable)", "HtoD (Pageable -> Device)"
    first = diagnose(account(tmp_path, late={0: moved(down, up)})).findings[0]
    assert first.title == "Offloading moves state between host and device"
    assert first.alone_ns / 1000 == pytest.approx(20 * 150, rel=0.15)
    (tmp_path / "up").mkdir()
    one_way = account(tmp_path / "up", late={0: moved(up)})
    assert not matched(one_way, "host-to-device-copy", "Offloading")
