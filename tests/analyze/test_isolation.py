"""An analysis that fails unexpectedly costs its own part of the report: one warning names it, all else stays."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.late import late_run

from stepscope.analyze.account import Account
from stepscope.cli.main import main
from stepscope.diagnose.finding import Kind
from stepscope.diagnose.findings import KINDS

LAZY = {
    "memory": "memory.memory_view",
    "steadiness": "steadiness.steadiness",
    "kernels": "kernels.kernel_table",
    "operators": "operators.operator_table",
    "critical path": "replay.removal.critical_path",
    "overlap": "account.overlap_efficiency",
    "parallel strategies": "account.by_strategy",
    "source lines": "match_owners.ownership_of",
}
EAGER = {
    "waterfall": "waterfall",
    "stragglers": "find_stragglers",
    "replay": "replay_of",
    "logged steps": "training_step",
    "device state": "device_states",
    "collectives": "collective_rows",
    "late rank": "late_rank",
}
FUNCTIONS = {
    **{name: f"stepscope.analyze.{function}" for name, function in LAZY.items()},
    **{name: f"stepscope.analyze.account.{function}" for name, function in EAGER.items()},
    "checks": "stepscope.document.report.checks_of",
    "guides": "stepscope.document.report.guides_of",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("late")
    late_run(path)
    return path


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, Any]:
    out = folder.parent / "whole.json"
    assert main(["report", str(folder), "--no-cache", "--json", str(out)]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def fail(*_: Any, **__: Any) -> None:
    raise ZeroDivisionError("planted")


def report(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["report", str(folder), "--no-cache", "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_failed_analysis_is_one_warning(
    name: str, folder: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FUNCTIONS[name], fail)
    found = report(folder, capsys)
    said = [line for line in found["warnings"] if "planted" in line]
    assert len(said) == 1 and said[0].startswith(f"{name} could not be analysed (ZeroDivisionError: planted)")
    assert found.keys() == whole.keys() and found["step"]["profiled_ms"] == whole["step"]["profiled_ms"]


def test_failed_kind_leaves_the_other_findings(
    folder: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert whole["findings"]
    broken = next(kind for kind in KINDS if kind.id != whole["findings"][0]["id"])
    original = Kind.candidates

    def candidates(kind: Kind, account: Account) -> Any:
        return fail() if kind is broken else original(kind, account)

    monkeypatch.setattr(Kind, "candidates", candidates)
    found = report(folder, capsys)
    assert [line for line in found["warnings"] if line.startswith(f"finding {broken.id} could not be analysed")]
    assert whole["findings"][0]["id"] in [one["id"] for one in found["findings"]]


def test_input_errors_and_memory_are_no_failed_analysis(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def out_of_memory(*_: Any, **__: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(FUNCTIONS["memory"], out_of_memory)
    assert main(["report", str(folder), "--no-cache"]) == 2
    assert "out of memory" in capsys.readouterr().err


def test_failure_shows_in_commands_that_show_no_warnings(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(FUNCTIONS["memory"], fail)
    assert main(["memory", str(folder), "--no-cache"]) == 2
    assert "memory could not be analysed" in capsys.readouterr().err
    assert main(["export", str(folder), "--no-cache", "--csv", str(tmp_path / "tables")]) == 0
    assert "memory could not be analysed" in capsys.readouterr().err
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    assert main(["report", str(folder), "--no-cache", "--json", "-"]) == 2
    assert "ZeroDivisionError: planted" in capsys.readouterr().err


def test_step_numbers_out_of_order_have_no_memory_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events: list[dict[str, Any]] = []
    for i, number in enumerate([10**10, 105, 101, 10**16, 94, 94, 80, 73, 72, 70, 68, 69, 81, 88, 100, 90]):
        at = {"pid": 1, "tid": 1, "ts": 1000 * i, "ph": "X"}
        events.append({**at, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "dur": 1000})
        events.append({**at, "cat": "cpu_op", "name": "aten::mm", "ts": 1000 * i + 10, "dur": 500})
        held = {
            "Total Allocated": 1000,
            "Bytes": 10,
            "Device Type": 1,
            "Device Id": 0,
            "Addr": i,
            "Total Reserved": 2000,
        }
        events.append(
            {**at, "ph": "i", "cat": "cpu_instant_event", "name": "[memory]", "ts": 1000 * i + 20, "args": held}
        )
    path = tmp_path / "rank0.pt.trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = report(path, capsys)
    assert found["memory"]["ranks"][0]["growth"] is None
    assert not [line for line in found["warnings"] if "could not be analysed" in line]
