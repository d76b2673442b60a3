"""`stepscope investigate`: health, report, code and compare in one Markdown file; a command is recorded first."""

import json
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    late_run(tmp_path / "late", loading=True)
    return tmp_path / "late"


def test_each_command_has_a_section_with_its_output(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", str(folder), "--unprofiled-step-ms", "3.2"]) == 0
    text = (folder / "investigation.md").read_text()
    assert capsys.readouterr().out == text
    for number, command in enumerate(("health", "report", "code"), 1):
        section = text.partition(f"## {number}. ")[2].partition("\n## ")[0]
        assert f"    stepscope {command} {folder} --unprofiled-step-ms=3.2\n" in section
    assert "Rank 1" in text and "--fixed RUN2" in text.partition("## 4. ")[2]


@pytest.mark.slow
def test_a_fix_is_compared_and_the_first_record_stays(folder: Path, tmp_path: Path) -> None:
    late_run(tmp_path / "fixed", late_us=0, loading=True)
    words = ["investigate", str(folder), "--fixed", str(tmp_path / "fixed"), "--fixed-unprofiled-step-ms", "1.5"]
    assert main(["investigate", str(folder)]) == 0
    assert main([*words, "--unprofiled-step-ms", "3.5", "--json", str(tmp_path / "all.json")]) == 0
    last = (folder / "investigation-2.md").read_text().partition("## 4. ")[2]
    assert "--unprofiled-step-ms-a=3.5 --unprofiled-step-ms-b=1.5" in last and "faster" in last
    assert "## 4. " in (folder / "investigation.md").read_text()
    found = json.loads((tmp_path / "all.json").read_text())
    assert found["compare"]["step_ms"]["a"] == 3.5 and found["compare"]["step_ms"]["b"] == 1.5
    assert found["health"]["findings"][0]["id"] == "straggler" and found["code"] is None


def test_out_names_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = folder / "rank00000.pt.trace.json.gz"
    assert main(["investigate", str(trace), "--out", str(tmp_path / "notes.md")]) == 0
    assert (tmp_path / "notes.md").read_text().startswith("# Investigation of ")
    assert main(["investigate", str(trace), "--out", str(tmp_path / "notes.md")]) == 2
    assert "already exists; use --force" in capsys.readouterr().err
    assert main(["investigate", str(trace)]) == 0
    assert "--out FILE writes one" in capsys.readouterr().err
    assert not list(folder.glob("investigation*"))
