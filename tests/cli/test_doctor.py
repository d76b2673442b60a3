"""The doctor says what works here, without importing what it looks for."""

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


def test_missing_package_is_told_and_fails_only_if_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from importlib.metadata import PackageNotFoundError, version

    def without(*names: str) -> None:
        def found(name: str) -> str:
            if name in names:
                raise PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr("importlib.metadata.version", found)

    without("torch", "duckdb")
    assert main(["doctor"]) == 0
    assert by_name()["torch"].found == "not installed"
    without("numpy")
    assert main(["doctor"]) == 2
    assert "NO" in capsys.readouterr().out
