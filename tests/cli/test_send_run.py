"""A finished run sent to a tracking server: the curves by step, then the report; what is missing is one sentence."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stepscope.cli.main import main

RUN = str(Path(__file__).parents[1] / "data" / "gloo-ddp")


@pytest.mark.slow
def test_curves_and_report_reach_mlflow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    steps: list[int] = []
    names: set[str] = set()
    pages: list[str] = []
    module: Any = ModuleType("mlflow")
    module.active_run = lambda: object()

    def log_metrics(values: dict[str, float], step: int) -> None:
        steps.append(step)
        names.update(values)

    module.log_metrics = log_metrics
    module.log_artifact = lambda path: pages.append(Path(path).read_text(encoding="utf-8"))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    assert main(["export", RUN, "--mlflow", "mine", "--no-cache"]) == 0
    assert steps == sorted(steps) == [2, 3, 4, 5] and "step/profiled_ms" in names
    assert len(pages) == 1 and pages[0].lstrip().lower().startswith("<!doctype html")
    assert "sent to mlflow: mine" in capsys.readouterr().out
