"""Copies into another memory order have the lines that ask for them, and save what they take."""

import pytest
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import Plant, account, nothing

from stepscope.diagnose.findings import diagnose

TIMES = 5
COPY_US = 90.0


def copies(r: PlantedRank, at: float, *stack: str, name: str = "aten::contiguous", times: int = TIMES) -> float:
    """Copies of 90 us, each launched when the one before is done."""
    for _ in range(times):
        with r.line("train.py:10", *stack), r.op(name, at, at + 99), r.op("aten::copy_", at + 2, at + 98):
            r.kernel("copy_kernel", at=at + 4, start=at + 8, end=at + 8 + COPY_US)
        at += 100
    return at


def test_copies_into_another_order_have_their_lines(tmp_path):
    found = account(
        tmp_path, late={0: lambda r, at, _: copies(r, copies(r, at, "model.py:30"), "model.py:31", times=1)}
    )
    (one,) = matched(found, "memory-bound-kernels", "memory order")
    assert one.title == "Copies into another memory order (model.py:30, model.py:31)"
    assert [(place.text, round(place.share, 2)) for place in one.match.where] == [
        ("model.py:30", 0.83),
        ("model.py:31", 0.17),
    ]
    said = next(f for f in diagnose(found).findings if f.title == one.title)
    assert said.alone_ns / 1000 == pytest.approx((TIMES + 1) * 100, rel=0.1)


SPARED: dict[str, Plant] = {
    "no copies": nothing,
    "by a library": lambda r, at, _: copies(r, at, "model.py:30", "lib:torch/nn/functional.py:9"),
    "of values": lambda r, at, _: copies(r, at, "model.py:30", name="aten::clone"),
    "a few": lambda r, at, _: copies(r, at, "model.py:30", times=1),
}


@pytest.mark.parametrize("plant", SPARED)
def test_other_copies_are_not_accused(tmp_path, plant):
    found = account(tmp_path, late={0: SPARED[plant]})
    assert matched(found, "memory-bound-kernels", "memory order") == []
