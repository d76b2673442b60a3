"""An analysis that fails unexpectedly costs its own part of the report: one warning names it, all else stays."""

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyze.account import Account
from stepscope.cli.main import main
from stepscope.diagnose.finding import Kind
from stepscope.diagnose.findings import KINDS

LAZY = {
    "memory": "memory.memory_view", "steadiness": "steadiness.steadiness", "kernels": "kernels.kernel_table",
    "operators": "operators.operator_table", "critical path": "replay.removal.critical_path",
    "overlap": "account.overlap_efficiency", "parallel strategies": "account.by_strategy",
}  # fmt: skip
EAGER = {
    "waterfall": "waterfall", "stragglers": "find_stragglers", "replay": "replay_of", "logged steps": "training_step",
    "device state": "device_states", "collectives": "collective_rows", "late rank": "late_rank",
}  # fmt: skip
FUNCTIONS = (
    {
        **{name: f"stepscope.analyze.{function}" for name, function in LAZY.items()},
        "checks": "stepscope.document.report.checks_of",
        "guides": "stepscope.document.report.guides_of",
    },
    {name: f"stepscope.analyze.account.{function}" for name, function in EAGER.items()},
)


@pytest.fixture(scope="module")
def whole(late_folder: Path) -> dict[str, Any]:
    out = late_folder.parent / "whole.json"
    assert main(["report", str(late_folder), "--no-cache", "--json", str(out)]) == 0
    return json.loads(out.read_text())


def fail(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("planted")


def report(late_folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["report", str(late_folder), "--no-cache", "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("failing", FUNCTIONS, ids=["where asked for", "of every account"])
def test_failed_analysis_is_one_warning(failing, late_folder, whole, monkeypatch, capsys):
    for function in failing.values():
        monkeypatch.setattr(function, fail)
    found = report(late_folder, capsys)
    said = [line.partition(" could not be analysed (ZeroDivisionError: planted)")[0] for line in found["warnings"]]
    assert {name: said.count(name) for name in failing} == dict.fromkeys(failing, 1)
    assert found.keys() == whole.keys() and found["step"]["profiled_ms"] == whole["step"]["profiled_ms"]


def test_failed_kind_leaves_the_other_findings(late_folder, whole, monkeypatch, capsys):
    assert whole["findings"]
    broken = next(kind for kind in KINDS if kind.id != whole["findings"][0]["id"])
    original = Kind.candidates

    def candidates(kind: Kind, account: Account) -> Any:
        return fail() if kind is broken else original(kind, account)

    monkeypatch.setattr(Kind, "candidates", candidates)
    found = report(late_folder, capsys)
    assert [line for line in found["warnings"] if line.startswith(f"finding {broken.id} could not be analysed")]
    assert whole["findings"][0]["id"] in [one["id"] for one in found["findings"]]


def test_input_errors_and_memory_are_no_failed_analysis(late_folder, monkeypatch, capsys):
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(FUNCTIONS[0]["memory"], out_of_memory)
    assert main(["report", str(late_folder), "--no-cache"]) == 2
    assert "out of memory" in capsys.readouterr().err


def test_failure_shows_in_commands_that_show_no_warnings(late_folder, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(FUNCTIONS[0]["memory"], fail)
    assert main(["memory", str(late_folder), "--no-cache"]) == 2
    assert "memory could not be analysed" in capsys.readouterr().err
    assert main(["export", str(late_folder), "--no-cache", "--csv", str(tmp_path / "tables")]) == 0
    assert "memory could not be analysed" in capsys.readouterr().err
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    assert main(["report", str(late_folder), "--no-cache", "--json", "-"]) == 2
    assert "ZeroDivisionError: planted" in capsys.readouterr().err
