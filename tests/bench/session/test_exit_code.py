"""Programs of the job side: a refusal is one line and exit code 2; faults of a user's model keep their traceback."""

import os
import stat
from pathlib import Path

import pytest

from stepscope.bench.session.exit_code import run_to_exit_code
from stepscope.bench.session.results import write_results
from stepscope.bench.trainer.events import Events
from stepscope.errors import UsageError
from stepscope.output_path import OutputRefusedError


def raising(error: Exception) -> int:
    raise error


@pytest.mark.parametrize("error", [UsageError("expected a\nfound \x1b[31m"), OSError(28, "No space left on device")])
def test_refusals_are_one_line_and_2(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPSCOPE_DEBUG", raising=False)
    assert run_to_exit_code("program", lambda: raising(error)) == 2
    said = capsys.readouterr().err
    assert said.startswith("program: ") and said.count("\n") == 1 and "\x1b" not in said
    monkeypatch.setenv("STEPSCOPE_DEBUG", "1")
    with pytest.raises(type(error)):
        run_to_exit_code("program", lambda: raising(error))


def test_faults_of_a_model_keep_their_traceback() -> None:
    assert run_to_exit_code("program", lambda: 0) == 0
    with pytest.raises(RuntimeError):
        run_to_exit_code("program", lambda: raising(RuntimeError("shapes do not fit")))


def test_results_never_replace_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "results.json")
    with pytest.raises(UsageError, match="it is a named pipe"):
        write_results({"series": []}, tmp_path)
    assert stat.S_ISFIFO(os.lstat(tmp_path / "results.json").st_mode)


def test_event_file_is_not_written_through_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.bench.trainer.events.time.time", lambda: 1.0)
    probe = Events(tmp_path / "probe")
    probe.close()
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / probe.path.name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputRefusedError, match="it is a link"):
        Events(tmp_path / "logs")
    assert not (tmp_path / "elsewhere").exists()
