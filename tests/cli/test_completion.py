"""Completion scripts offer every command, kind, option and choice, and shells take them."""

import shutil
import subprocess
from pathlib import Path

import pytest
from tests.limits import HANG_S

from stepscope.cli.main import COMMANDS, main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def offered(words: list[str], capsys: pytest.CaptureFixture[str], where: Path) -> list[str]:
    """Return what bash offers for the last of these words."""
    quoted = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _stepscope; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    done = subprocess.run(
        ["bash", "-c", f"{script('bash', capsys)}\n{asked}"],
        capture_output=True, text=True, check=True, timeout=HANG_S, cwd=where,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["stepscope", "rep"], ["report"]),
        (["stepscope", "report", "--ht"], ["--html"]),
        (["stepscope", "bench", "sca"], ["scaling"]),
        (["stepscope", "bench", "scaling", "--mode", "st"], ["strong"]),
        (["stepscope", "completion", "z"], ["zsh"]),
        (["stepscope", "report", "a-run"], ["a-run-folder"]),
    ],
)
def test_bash_offers(words: list[str], expected: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a-run-folder").mkdir()
    assert offered(words, capsys, tmp_path) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_take_the_script(shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = script(shell, capsys)
    assert all(name in text for name in COMMANDS)
    if not shutil.which(shell):
        pytest.skip(f"needs {shell}")
    path = tmp_path / "script"
    path.write_text(text)
    subprocess.run([shell, "-n", str(path)], check=True, timeout=HANG_S)
