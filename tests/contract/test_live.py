"""Requests, plans and what ranks say: anybody may have written them, so nothing in them is believed unseen."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.contract.live import (
    LIVE_FOLDER,
    MAX_ASKED_STEPS,
    PLAN,
    REQUEST,
    read_plan,
    read_request,
    read_status,
    status_file,
)


def left(folder: Path, name: str, content: Any) -> Path:
    (folder / LIVE_FOLDER).mkdir(exist_ok=True)
    (folder / LIVE_FOLDER / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", {}, {"id": "a"}, *({"id": "a", "steps": n} for n in (0, -1, True, 1.5, "5", MAX_ASKED_STEPS + 1))],
)
def test_request_of_another_kind_is_none(tmp_path: Path, content: Any) -> None:
    assert read_request(left(tmp_path, REQUEST, content)) is None


@pytest.mark.parametrize(
    "change",
    [{"first": -1}, {"last": 12}, {"last": 10**7}, {"warmup": 13}, {"window": None}, {"first": "12"}, {"id": 7}],
)
def test_plan_that_cannot_be_is_none(tmp_path: Path, change: dict[str, Any]) -> None:
    plan = {"id": "a", "first": 12, "last": 14, "warmup": 2, "window": 1}
    assert read_plan(left(tmp_path, PLAN, {**plan, **change})) is None


def test_what_a_rank_says_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    frames = [["/a/train.py", 4, "main"], ["x"], 7, ["y", "z", None]]
    stall = {"step": 7, "for_s": 2.5, "usual_s": "x", "frames": frames, "region": 3, "sequence": -1}
    left(tmp_path, status_file(3), {"step": 7, "step_s": 1e999, "answered": "a", "stall": stall})
    said = read_status(tmp_path, 3)
    assert said is not None and said.step == 7 and said.step_s is None and said.answered == "a"
    assert said.stall is not None and said.stall.for_s == 2.5 and said.stall.usual_s == 0
    assert [(f.file, f.line, f.function) for f in said.stall.frames] == [("/a/train.py", 4, "main"), ("y", 0, "?")]
    assert said.stall.region is None and said.stall.sequence is None
    assert read_status(tmp_path, 4) is None
