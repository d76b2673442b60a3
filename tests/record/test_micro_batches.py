"""Steps of many micro-batches: regions agree with hand timers, and training is unchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.record.script_runs import step_lines

from stepscope.record import session, steps as regions_module
from stepscope.record.config import RecordConfig
from stepscope.record.hooks.install import install
from stepscope.record.loop import loop as loop_module, routine as routine_module
from stepscope.record.session import Recorder
from stepscope.record.window import guards

LOAD, FORWARD, BACKWARD, STEP = "data_loading", "forward_pass", "backward_pass", "optimizer_step"
SPENT_NS = {LOAD: 5_000, FORWARD: 10_000, BACKWARD: 30_000, STEP: 50_000, "glue": 1_000}


class Job:
    """Accumulates gradients over batches of a loader, and notes by hand what each region of each step takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 1_000_000_000
        for module in (loop_module, routine_module, session, regions_module, guards):
            monkeypatch.setattr(module, "perf_counter_ns", lambda: self.now_ns)
        torch.manual_seed(0)
        self.model = torch.nn.Linear(2, 2)
        self.model.register_forward_hook(lambda *_: self.spend(FORWARD))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.optimizer.register_step_pre_hook(lambda *_: self.spend(STEP))
        self.batches = iter(torch.utils.data.DataLoader(range(10**6), collate_fn=self.load))
        self.losses: list[float] = []

    def spend(self, name: str) -> None:
        self.now_ns += SPENT_NS[name]

    def load(self, _: object) -> torch.Tensor:
        self.spend(LOAD)
        return torch.ones(1, 2)

    def step(self, micro_batches: int) -> None:
        for _ in range(micro_batches):
            loss = self.model(next(self.batches)).square().mean()
            self.spend("glue")
            loss.register_hook(lambda _: self.spend(BACKWARD))
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())


def recorded(counts: list[int], job: Job, out: Path) -> list[dict[str, Any]]:
    """Return the log of steps with these numbers of micro-batches."""
    recorder = Recorder.start(RecordConfig(out=str(out), light=True, telemetry=False))
    hooks = install(lambda: recorder)
    hooks.loop.start()
    try:
        for count in counts:
            job.step(count)
        hooks.finish()
    finally:
        hooks.remove()
        recorder.close()
    return step_lines(out)


@pytest.mark.slow
@pytest.mark.parametrize("followed", [True, False])
def test_regions_agree_with_hand_timers(followed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if followed:
        monkeypatch.setattr(loop_module, "SHORT_STEP_NS", 0)
        monkeypatch.setattr(loop_module, "_SHORT_EVENT_NS", 0)
    counts = [*[8] * 12, 5, *[8] * 6, *[150] * 8]
    found = recorded(counts, Job(monkeypatch), tmp_path / "run")
    assert [line["step"] for line in found] == list(range(len(counts)))
    for line, count in list(zip(found, counts, strict=True))[3:]:
        expected = {name: {"ns": count * SPENT_NS[name], "n": count} for name in (LOAD, FORWARD, BACKWARD)}
        expected[STEP] = {"ns": SPENT_NS[STEP], "n": 1}
        assert expected.items() <= line["regions"].items()  # a garbage collection is a region too
