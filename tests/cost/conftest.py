"""Counting the FLOPs of a real profiled run, the way an analysis does it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.cost.operators import OpCost, counted_once, operator_cost


@pytest.fixture
def profiled_costs(tmp_path: Path) -> Callable[[Callable[[], Any]], list[OpCost]]:
    """Return a function that runs something under torch.profiler and gives the costs to be counted."""

    torch = pytest.importorskip("torch")
    cpu = [torch.profiler.ProfilerActivity.CPU]

    def run(function: Callable[[], Any]) -> list[OpCost]:
        torch.set_num_threads(1)
        with torch.profiler.profile(activities=cpu, record_shapes=True) as profiler:
            function()
        profiler.export_chrome_trace(str(tmp_path / "trace.json"))
        events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
        return counted([event for event in events if event.get("cat") == "cpu_op"])

    return run


def counted(events: list[dict[str, Any]]) -> list[OpCost]:
    events = sorted(events, key=lambda e: (e["tid"], e["ts"], -e["dur"]))
    costs = [_cost(event) for event in events]
    kept = counted_once(np.array([cost is not None for cost in costs]), parents=_parents(events))
    return [cost for cost, keep in zip(costs, kept, strict=True) if keep and cost is not None]


def _cost(event: dict[str, Any]) -> OpCost | None:
    args = event["args"]
    texts = (json.dumps(args.get(key)) for key in ("Input Dims", "Input type", "Concrete Inputs"))
    dims, types, concrete = texts
    return operator_cost(event["name"], dims=dims, types=types, concrete=concrete)


def _parents(events: list[dict[str, Any]]) -> np.ndarray:
    parents = np.full(len(events), -1, np.int64)
    open_rows: list[int] = []
    for row, event in enumerate(events):
        while open_rows and not _inside(event, events[open_rows[-1]]):
            open_rows.pop()
        parents[row] = open_rows[-1] if open_rows else -1
        open_rows.append(row)
    return parents


def _inside(event: dict[str, Any], outer: dict[str, Any]) -> bool:
    return event["tid"] == outer["tid"] and event["ts"] < outer["ts"] + outer["dur"]
