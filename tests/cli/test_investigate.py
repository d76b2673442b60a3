"""`stepscope investigate`: five steps on the terminal, a record in the run folder, a fix validated."""

import json
import shutil
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


def test_the_record_is_no_trace_of_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", str(folder)]) == 0
    capsys.readouterr()
    assert main(["investigate", str(folder), "--json", "-"]) == 0
    assert "left out" not in capsys.readouterr().out


def test_a_foreign_file_of_that_name_is_left_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "investigation.json").write_text('{"mine": 1}')
    assert main(["investigate", str(folder)]) == 0
    assert "no record was kept" in capsys.readouterr().err
    assert (folder / "investigation.json").read_text() == '{"mine": 1}'


def test_a_folder_marked_read_only_is_left_alone_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder.chmod(0o500)
    assert main(["investigate", str(folder)]) == 0
    folder.chmod(0o700)
    assert "read-only" in capsys.readouterr().err
    assert not list(folder.glob("investigation.*"))


def test_beside_a_single_trace_nothing_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["investigate", str(folder / "rank00000.pt.trace.json.gz")]) == 0
    assert "no run folder" in capsys.readouterr().err
    assert not list(folder.glob("investigation.*"))


def test_a_folder_that_vanished_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import stepscope.cli.investigate as command

    printed = command.print_step

    def gone(step: object, out: object) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        printed(step, out)  # type: ignore[arg-type]

    monkeypatch.setattr(command, "print_step", gone)
    assert main(["investigate", str(folder)]) == 0
    assert "no record was kept" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"), [(["--finding", "nonsense"], "straggler"), (["--fixed", "nowhere"], "nowhere")]
)
def test_wrong_words_are_one_line_and_exit_2(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["investigate", str(folder), *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
