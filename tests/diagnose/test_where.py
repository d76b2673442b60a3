"""Findings name the line that was planted for them."""

import pytest
from tests.analyze.owners.simulated import line_of, owned_run
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel

from stepscope.analysis import Analysis

DEVICE_BOUND = [kernel(150, host_us=20) for _ in range(12)]
STALL = Op("stall", host_us=8000)


def named(run: Analysis, finding: str) -> list[tuple[str, float]]:
    (found,) = [f for f in run.findings if f.id == finding]
    return [(place.text, place.share) for place in found.where]


def test_a_synchronisation_has_its_line(tmp_path):
    program = [*DEVICE_BOUND, SYNC, *[kernel(20, host_us=150) for _ in range(8)]]
    ((owner, share),) = named(Analysis(owned_run(tmp_path, program)), "host-device-sync")
    assert owner == f"train.py:{line_of(12)}"
    assert share == pytest.approx(1.0, abs=0.1)


def test_a_stall_has_its_line(tmp_path):
    program = [*DEVICE_BOUND, STALL, kernel(20)]
    places = named(Analysis(owned_run(tmp_path, program)), "host-stall")
    assert places[0][0] == f"train.py:{line_of(12)}"
    assert places[0][1] > 0.9


def test_collectives_have_their_lines(tmp_path):
    several = [collective(200, host_us=100, elements=64) for _ in range(8)]
    program = [*[kernel(50, host_us=20) for _ in range(6)], *several, WAIT, kernel(50)]
    run = Analysis(owned_run(tmp_path, program, program))
    places = named(run, "communication-bound")
    assert {owner for owner, _ in places} <= {f"train.py:{line_of(6 + k)}" for k in range(8)}
    assert [share for _, share in places] == pytest.approx([1 / 8] * len(places))
    assert len(places) > 1
