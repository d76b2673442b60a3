"""The host's time after the last device operation belongs to a step that no other follows."""

from pathlib import Path
from typing import Any

from tests.analyze.build import RankTrace
from tests.diagnose.test_recording import busy, document


def part(found: dict[str, Any], name: str) -> float:
    return next(float(row["ms_per_step"]) for row in found["step"]["budget"] if row["part"] == name)


def test_a_single_step_lasts_as_long_as_its_mark(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(3, 0, 20_000)
    busy(r, 0)  # the device ends at 8,500
    found = document(tmp_path, r)
    assert found["step"]["profiled_ms"] == 20
    assert part(found, "unknown") == 11.5


def test_python_after_the_last_operation_is_a_stall(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(3, 0, 20_000)
    busy(r, 0)
    r.python("postprocess.py(7): to_images", 8_400, 19_900)
    assert part(document(tmp_path, r), "host_stall") == 11.5


def test_a_range_around_all_launches_is_the_window(tmp_path: Path) -> None:
    r = RankTrace()
    r.annotation("generate", 0, 10_000)
    busy(r, 1_000, kernels=70)
    found = document(tmp_path, r)
    assert found["step"]["profiled_ms"] == 10
    assert any("the range 'generate'" in note for note in found["warnings"])


def test_a_range_in_which_the_device_hardly_works_is_not_the_window(tmp_path: Path) -> None:
    r = RankTrace()
    r.annotation("main", 0, 100_000)
    busy(r, 1_000, kernels=70)
    assert document(tmp_path, r)["step"]["profiled_ms"] == 8
