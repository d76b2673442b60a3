"""`stepscope investigate`: five steps on the terminal, a record in the run folder, a fix validated."""

import json
import sys
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    late_run(tmp_path / "late", loading=True)
    return tmp_path / "late"


def test_the_steps_are_printed_and_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", str(folder)]) == 0
    captured = capsys.readouterr()
    for heading in ("1. Baseline", "2. Category", "3. Detail", "4. Root cause", "5. Validation"):
        assert heading in captured.out
    assert "investigation.json" in captured.err
    record = json.loads((folder / "investigation.json").read_text())
    assert [s["name"] for s in record["investigations"][0]["steps"]][3] == "Root cause"
    assert "4. Root cause" in (folder / "investigation.txt").read_text()


def test_a_second_investigation_is_added_to_the_record(folder: Path, tmp_path: Path) -> None:
    late_run(tmp_path / "fixed", late_us=0, loading=True)
    assert main(["investigate", str(folder)]) == 0
    assert main(["investigate", str(folder), "--fixed", str(tmp_path / "fixed"), "--json", "-"]) == 0
    record = json.loads((folder / "investigation.json").read_text())
    assert [i["fixed"] for i in record["investigations"]] == [None, "fixed"]
    assert "came true" in record["investigations"][1]["steps"][4]["answer"]
    assert (folder / "investigation.txt").read_text().count("1. Baseline") == 2


def test_a_foreign_file_of_that_name_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "investigation.json").write_text('{"mine": 1}')
    assert main(["investigate", str(folder)]) == 0
    assert "no record was written" in capsys.readouterr().err
    assert (folder / "investigation.json").read_text() == '{"mine": 1}'


def test_beside_a_single_trace_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", str(folder / "rank00000.pt.trace.json.gz")]) == 0
    assert "not a run folder" in capsys.readouterr().err
    assert not list(folder.glob("investigation.*"))


TRAINS_ON_TWO_RANKS = """
import os
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(24):
    optimizer.zero_grad()
    if os.environ["RANK"] == "1":
        time.sleep(0.4)  # more than other jobs on the cores delay a step of a few ms
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
print("trained")
dist.destroy_process_group()
"""


@pytest.mark.job
@pytest.mark.slow
def test_a_command_is_recorded_on_every_rank_and_its_late_rank_found(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAINS_ON_TWO_RANKS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    out = tmp_path / "run"
    assert main(["investigate", "--out", str(out), "--json", "-", "--", *launcher]) == 0
    captured = capfd.readouterr()
    found = json.loads(captured.out)
    assert captured.err.count("trained") == 2
    steps = {step["name"]: step for step in found["steps"]}
    assert {fact["what"]: fact["value"] for fact in steps["Baseline"]["facts"]}["ranks"] == 2
    # A host that sleeps is both, and which of them saves more is for the noise of the machine to say.
    assert {"straggler", "host-stall"} & {fact["what"] for fact in steps["Root cause"]["facts"]}
    assert len(json.loads((out / "investigation.json").read_text())["investigations"]) == 1
    assert main(["report", str(out), "--json", "-"]) == 0
    assert [s["rank"] for s in json.loads(capfd.readouterr().out)["stragglers"]] == [1]
