"""The exported timeline has tracks of the lines and modules that the host worked for."""

from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import STEPS, owned_folder
from tests.report.timeline.test_slices import decoded, from_json, source

from stepscope.report.perfetto import chrome_trace, perfetto_trace
from stepscope.report.timeline import LINES, MODULES, Filter, timeline_of
from stepscope.run.aligned import AlignedRun, aligned


@pytest.fixture
def shared(tmp_path: Path) -> AlignedRun:
    return aligned(owned_folder(tmp_path, ranks=2))


def test_lines_and_modules_are_tracks_beside_every_event(shared: AlignedRun) -> None:
    timeline = timeline_of(shared, owners=True)
    assert [track.name for track in timeline.ranks[0].tracks][-2:] == [LINES, MODULES]
    slices = decoded(perfetto_trace(timeline))[0]
    assert slices == from_json(chrome_trace(timeline))[0]
    for rank, planted in source(shared).items():
        added = [one for one in slices[rank] if one not in planted]
        assert len(added) + len(planted) == len(slices[rank])
        lines = [name for _, _, name in sorted(added) if name.startswith(("train.py", "model.py"))]
        # Python of the loop, forward, backward, the statistic, in each step.
        assert lines[:4] == ["train.py:9 f", "model.py:3 f", "train.py:11 f", "train.py:12 f"]
        assert lines.count("model.py:3 f") == STEPS
        assert sum(name == "blocks.0.up" for _, _, name in added) == STEPS


def test_a_slice_is_as_long_as_its_owner_ran(shared: AlignedRun) -> None:
    rank = decoded(perfetto_trace(timeline_of(shared, owners=True)))[0][0]
    assert {dur for _, dur, name in rank if name == "blocks.0.up"} == {100_000}


def test_filters_hold_for_them(shared: AlignedRun) -> None:
    short = Filter(min_ns=150_000)
    kept = timeline_of(shared, given=short, owners=True)
    assert "model.py:3 f" not in kept.names and "train.py:11 f" in kept.names
    device = Filter(gpu_only=True)
    assert timeline_of(shared, given=device, owners=True).categories == timeline_of(shared, given=device).categories
    one = Filter(steps=range(1, 2))
    of_one = timeline_of(shared, given=one, owners=True)
    assert sum(name == "blocks.0.up" for _, _, name in decoded(perfetto_trace(of_one))[0][0]) == 1
