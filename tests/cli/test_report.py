"""`stepscope report`: the contract's JSON and exit codes, partial results, outputs that are refused."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.step_logs import log_lines, write_log
from tests.limits import HANG_S
from tests.report.pages import comparison

from stepscope.cli.main import main
from stepscope.contract.run_folder import trace_file

DATA = Path(__file__).parent.parent / "data"


def report(*arguments: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, Any]:
    assert main(["report", *arguments, "--json", "-", "--no-cache"]) == code
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def test_numbers_of_a_job_whose_truth_is_known(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = report(str(folder), capsys=capsys)
    assert (found["run"]["num_ranks"], found["run"]["world_size"], found["run"]["num_steps"]) == (2, 2, 4)
    early, late = found["ranks"]
    assert early["compute_ms"] == pytest.approx(4 * 0.6)
    assert late["compute_ms"] == pytest.approx(4 * 2.6)
    assert early["wait_ms"] == pytest.approx(4 * 2.0, rel=0.01)
    assert late["wait_ms"] == pytest.approx(0, abs=0.01)
    assert early["transfer_ms"] == pytest.approx(4 * 0.5, rel=0.01)
    assert found["stragglers"][0]["rank"] == 1
    assert sum(p["pct"] for p in found["step"]["budget"]) == pytest.approx(100, abs=0.01)


def test_unreadable_rank_is_code_3_with_the_result(folder, tmp_path, capsys):
    for path in folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / trace_file(2)).write_bytes(b"\x00" * 50)
    found = report(str(tmp_path), capsys=capsys, code=3)
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    assert any(line.startswith("skipped ") for line in found["warnings"])


def test_cut_rank_is_a_warning_and_code_0(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = gzip.decompress((folder / trace_file(0)).read_bytes())
    (tmp_path / "rank0.json").write_bytes(whole[: len(whole) * 3 // 4])
    found = report(str(tmp_path / "rank0.json"), capsys=capsys)
    assert found["ranks"][0]["num_steps"] < 4
    assert any(line.startswith("cut off") for line in found["warnings"])


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"not json", b'{"traceEvents": 7}', b'{"traceEvents": []}', b"\x1f\x8b\x08\x00"]
)
def test_file_that_is_no_trace_is_one_line(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "rank0.json").write_bytes(content)
    assert main(["report", str(path), "--json", "-", "--no-cache"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("stepscope report: ")


@pytest.mark.slow
def test_installed_command_works_as_a_process(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stepscope.cli.main", "report", str(folder), "--json", "-", "--no-cache"],
        capture_output=True,
        timeout=HANG_S,
        env={"PATH": "/usr/bin:/bin", "LANG": "C"},
    )
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == 1
    assert done.stderr == b""


def steps_only(place: Path) -> Path:
    """Return a run folder as light mode leaves it: rank 1 works 20 ms longer, rank 0 waits for it."""
    for rank, waited in enumerate((22.0, 2.0)):
        steps = [{"backward_pass": 3.0, "gradient_sync": waited, "outside": 27.0 - waited} for _ in range(20)]
        steps[7] = {"backward_pass": 25.0, "outside": 5.0}
        write_log(place, rank, log_lines(steps), ranks=2)
    (place / "run.json").write_text("{}")
    return place


def test_run_without_traces_shows_its_step_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(steps_only(tmp_path))]) == 0
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines()]
    assert "20 steps · step logs only" in said and "Rank 1 is 20 ms late per step" in said
    assert ["1", "◀", "30.0", "2.0", "3.0", "late", "by", "20.0", "ms"] in rows
    assert ["0", "30.0", "22.0", "3.0"] in rows


def test_run_without_traces_has_json_a_page_and_a_comparison(tmp_path, capsys):
    (tmp_path / "run").mkdir()
    folder, page = str(steps_only(tmp_path / "run")), tmp_path / "steps.html"
    assert main(["report", folder, "--json", "-"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["step"]["unprofiled_ms"], document["step"]["profiled_ms"]) == (30.0, None)
    assert document["verdict"] == "straggler-bound" and document["stragglers"][0]["rank"] == 1
    assert document["ranks"][0]["regions_ms"] == {"backward_pass": 3.0, "gradient_sync": 22.0}
    assert "no trace was recorded" in document["warnings"][0] and document["findings"] == []
    traced = {"run", "step", "ranks", "efficiency", "waterfall", "findings", "findings_combined", "checks", "code"}
    assert traced <= set(document)
    assert main(["report", folder, "--html", str(page)]) == 0
    assert "Step: 30.0 ms" in page.read_text() and "Content-Security-Policy" in page.read_text()
    assert main(["compare", folder, folder, "--json", "-"]) == 0
    assert '"verdict": "no difference found"' in capsys.readouterr().out


def test_results_of_a_benchmark_and_a_folder_of_runs_are_shown(tmp_path, capsys):
    for name in ("runs/one", "bench"):
        (tmp_path / name).mkdir(parents=True)
    steps_only(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "two").mkdir()
    shutil.copytree(DATA / "gloo-linear", tmp_path / "runs" / "two", dirs_exist_ok=True)
    assert main(["report", str(tmp_path / "runs"), "--json", "-"]) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [row["name"] for row in rows] == ["one", "two"] and rows[0]["step_ms"] == 30.0
    assert main(["report", str(tmp_path / "runs"), "--html", str(tmp_path / "runs.html")]) == 0
    assert "2 runs" in capsys.readouterr().out
    (tmp_path / "bench" / "results.json").write_text(json.dumps(comparison()))
    assert main(["report", str(tmp_path / "bench"), "--html", str(tmp_path / "bench.html")]) == 0
    assert "recommended: ddp_bucketed" in capsys.readouterr().out
    assert main(["report", str(tmp_path / "bench"), "--json", "-"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("run", ["dlrm-8ranks", "h200-hsdp", "gloo-mesh"])
def test_any_number_of_jobs_gives_the_same_bytes(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = []
    for jobs in ("1", "2", "7"):
        assert main(["report", str(DATA / run), "--json", "-", "--no-cache", "--jobs", jobs]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] == said[2]
