"""Ranks that die, refuse, hang or fill the disk: a clear message, no hang, and what was measured is kept."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.job_environment import python_path
from tests.limits import HANG_S

from stepscope.bench.session.launch import launch, records_of

pytestmark = pytest.mark.job
JOBS = "tests.bench.launch_jobs"
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def jobs_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", python_path(ROOT))


def test_records_of_all_ranks_come_back_in_order(tmp_path: Path) -> None:
    seen: list[str] = []
    plan = {"job": f"{JOBS}:counts", "settings": {"count": 3}}
    result = launch(
        plan, world_size=2, backend="gloo", out=tmp_path, limit_s=HANG_S, on_record=lambda r: seen.append(r["what"])
    )
    assert result.complete and result.exit_codes == (0, 0)
    for rank, records in enumerate(result.records):
        assert [r["number"] for r in records if r["what"] == "number"] == [0, 1, 2]
        assert [r["sum"] for r in records if r["what"] == "number"] == [1.0] * 3, rank
    assert seen == ["machine", "number", "number", "number", "done"]


def test_killed_rank_ends_the_others_and_keeps_what_was_measured(tmp_path: Path) -> None:
    plan = {"job": f"{JOBS}:one_is_killed", "settings": {}}
    result = launch(plan, world_size=2, backend="gloo", out=tmp_path, limit_s=HANG_S)
    assert not result.complete and "rank 1 was killed by signal 9" in (result.message or "")
    assert [r["number"] for r in result.records[0] if r["what"] == "number"] == [0]
    assert result.exit_codes[0] != 0  # None: we ended it


def test_rank_that_fails_after_its_last_record_has_lost_nothing(tmp_path: Path) -> None:
    plan = {"job": f"{JOBS}:aborts_while_it_ends", "settings": {}}
    result = launch(plan, world_size=2, backend="gloo", out=tmp_path, limit_s=HANG_S)
    assert result.complete
    assert result.exit_codes[1] == -signal.SIGABRT


def test_error_of_a_rank_is_told_in_one_line(tmp_path: Path) -> None:
    result = launch(
        {"job": f"{JOBS}:one_fails", "settings": {}}, world_size=2, backend="gloo", out=tmp_path, limit_s=HANG_S
    )
    assert "rank 1" in (result.message or "") and "ValueError: the planted error" in (result.message or "")
    assert "\n" not in (result.message or "")


def test_full_disk_is_named_and_earlier_records_stay(tmp_path: Path) -> None:
    result = launch(
        {"job": f"{JOBS}:disk_is_full", "settings": {}}, world_size=1, backend="gloo", out=tmp_path, limit_s=HANG_S
    )
    assert "No space left on device" in (result.message or "")
    assert [r["number"] for r in result.records[0] if r["what"] == "number"] == [0]


def test_time_limit_ends_ranks_that_hang(tmp_path: Path) -> None:
    result = launch({"job": f"{JOBS}:hangs", "settings": {}}, world_size=1, backend="gloo", out=tmp_path, limit_s=8)
    assert "not finished after 8 s" in (result.message or "")
    assert result.exit_codes == (None,)  # we ended it


def test_nccl_without_a_device_is_refused_with_the_remedy(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a device here")
    result = launch(
        {"job": f"{JOBS}:counts", "settings": {}}, world_size=1, backend="nccl", out=tmp_path, limit_s=HANG_S
    )
    assert "needs a CUDA device" in (result.message or "") and "gloo" in (result.message or "")


def test_ctrl_c_ends_the_ranks_and_keeps_what_was_measured(tmp_path: Path) -> None:
    script = (
        "import json; from pathlib import Path; from stepscope.bench.session.launch import launch; "
        f"r = launch({{'job': '{JOBS}:hangs', 'settings': {{}}}}, world_size=1, backend='gloo', "
        f"out=Path({str(tmp_path)!r}), limit_s={HANG_S}); "
        "print(json.dumps([r.interrupted, r.message, len(r.records[0])]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=dict(os.environ), cwd=ROOT
    )
    deadline = time.monotonic() + HANG_S
    while not any(r["what"] == "number" for r in records_of(tmp_path, 0)) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    interrupted, message, count = json.loads(process.communicate(timeout=HANG_S)[0])
    assert interrupted and "Ctrl-C" in message and count == 2


def test_line_cut_short_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "rank00000.samples.jsonl").write_text('{"what": "a"}\n{"what": "b", "x": 1')
    assert records_of(tmp_path, 0) == [{"what": "a"}]
