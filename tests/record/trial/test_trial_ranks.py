"""Two ranks with steps that are only timed: both end after the last, all is written, torchrun is content."""

import json
import sys
from pathlib import Path

import pytest

from stepscope.cli.tune import Trials
from stepscope.tune.experiment import ROUNDING, Candidate

SCRIPT = str(Path(__file__).parent / "ddp_job.py")


@pytest.mark.job
@pytest.mark.slow
def test_two_ranks_end_together_with_all_steps_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    trials = Trials([*torchrun, SCRIPT], tmp_path, steps=60, warmup=2, limit_s=600)
    bucket = Candidate("bucket", ROUNDING, "", {"ddp.bucket_cap_mb": 5})
    found = trials("once", bucket)
    assert found.failed is None and found.steps == 60 and found.took == ("ddp.bucket_cap_mb",)
    run = json.loads((tmp_path / "trials" / "000" / "run.json").read_text())
    assert run["finished"] and run["missing_ranks"] == [] and run["ddp"]["bucket_cap_bytes"] == 5 << 20
    assert [r["steps"]["count"] for r in run["ranks"].values()] == [62, 62]
