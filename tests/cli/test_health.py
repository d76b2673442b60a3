"""`stepscope health`: one table, stragglers named, and gates whose exit code CI can rely on."""

import json
import re
import sys

import pytest
from tests.diagnose.late import late_run

from stepscope.cli.main import main

TRAINS = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print("trained")
"""


def test_value_between_good_and_bad_is_borderline(tmp_path, capsys):
    late_run(tmp_path / "run", loading=True, late_us=4000)  # one of four ranks waits for 73 % of the step
    assert main(["health", str(tmp_path / "run")]) == 0
    rows = [re.split(r" {2,}", row) for row in capsys.readouterr().out.splitlines()]
    status = {row[0]: row[1] for row in rows if len(row) > 2}
    assert status["data loading, %"] == "borderline" and status["all reduce, % of backward"] == "fail"


@pytest.mark.parametrize(
    ("gates", "code"),
    [
        (["stragglers.count>0"], 1),
        (["stragglers.count>1"], 0),
        (["step_ms>3.5", "wait_pct>10"], 1),
        (["findings.data-loading.saving_pct>5"], 0),
        (["data_loading_pct>30"], 1),  # not measured, and so not known to hold
    ],
)
def test_gates_decide_the_exit_code(late_folder, gates, code):
    assert main(["health", str(late_folder), *(w for g in gates for w in ("--fail-on", g))]) == code


def test_json_has_the_report_the_checks_and_the_gates(late_folder, capsys):
    assert main(["health", str(late_folder), "--json", "-", "--fail-on", "stragglers.count>0"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == 1 and len(found["checks"]) == 10
    assert [(one["rank"], one["cause"]) for one in found["stragglers"]] == [(1, "host")]
    assert {c["status"] for c in found["checks"]} <= {"pass", "fail", "not measured"}
    assert set(found["checks"][0]) == {"id", "value", "good", "bad", "status", "reason"}
    assert found["gates"] == [
        {"fail_on": "stragglers.count>0", "holds": False, "value": 1, "said": "stragglers.count is 1"}
    ]


@pytest.mark.parametrize("words", [[], ["{folder}", "--", "true"]])
def test_a_run_or_a_command_and_not_both(late_folder, words, capsys):
    assert main(["health", *(w.format(folder=late_folder) for w in words)]) == 2
    assert "RUN or -- COMMAND" in capsys.readouterr().err


def test_a_command_that_trains_nothing_is_told(tmp_path, capfd):
    out = str(tmp_path / "run")
    assert main(["health", "--out", out, "--", sys.executable, "-c", "raise SystemExit(4)"]) == 2
    error = capfd.readouterr().err
    assert "exit code 4" in error and "no training step was recorded" in error


@pytest.mark.job
def test_a_command_is_recorded_and_its_output_kept_out_of_the_json(tmp_path, capfd):
    words = ["health", "--out", str(tmp_path / "run"), "--steps", "4:7", "--json", "-"]
    assert main([*words, "--", sys.executable, "-c", TRAINS]) == 0
    captured = capfd.readouterr()
    found = json.loads(captured.out)
    assert found["run"]["num_steps"] == 3 and "trained" in captured.err
