"""The doctor says what works here, without importing what it looks for."""

import json
import subprocess
import sys

import pytest

from stepscope.cli.doctor import Check, checks
from stepscope.cli.main import main


def by_name() -> dict[str, Check]:
    return {check.what: check for check in checks()}


def test_everything_needed_works_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "trace reader" in said
    assert "reads exactly" in said
    assert " NO " not in said


@pytest.mark.parametrize("where", [[], ["-"]])
def test_json_has_every_check(where: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {c["what"] for c in found} == set(by_name())
    assert all(set(c) == {"what", "works", "needed", "found", "purpose"} for c in found)


def test_missing_package_is_told_and_fails_only_if_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import PackageNotFoundError, version

    def without(*names: str) -> None:
        def found(name: str) -> str:
            if name in names:
                raise PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr("stepscope.cli.doctor.version", found)

    without("torch", "duckdb")
    assert main(["doctor"]) == 0
    assert by_name()["torch"].found == "not installed"
    without("numpy")
    assert main(["doctor"]) == 2
    assert "NO" in capsys.readouterr().out


def test_broken_reader_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError("no wasm here")

    monkeypatch.setattr("stepscope.trace.read.read", broken)
    reader = by_name()["trace reader"]
    assert (reader.works, reader.needed, reader.found) == (False, True, "no wasm here")


def test_tools_are_looked_up_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.cli.doctor.shutil.which", lambda name: "/opt/nsys" if name == "nsys" else None)
    assert by_name()["nsys"].works
    assert by_name()["ncu"].found == "not on PATH"


def test_torch_is_not_imported() -> None:
    code = "import sys; from stepscope.cli.main import main; main(['doctor']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL).returncode == 0
