import dataclasses
import json

import torch

from stepscope.record.memory import MemoryTimeline, memory_snapshot


class Device:
    """An allocator of known content: `allocated` now, and the most there ever was."""

    def __init__(self):
        self.allocated = self.peak = 0

    def set(self, allocated, *, via=0):
        self.allocated = allocated
        self.peak = max(self.peak, allocated, via)

    def stats(self):
        return {"allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}}}

    def snapshot(self, label):
        return dataclasses.replace(
            memory_snapshot(label), allocated_bytes=self.allocated, peak_allocated_bytes=self.peak
        )


def train_step(timeline, device, step, *, weights):
    timeline.on_region_begin("forward_pass")
    device.set(weights + 500)
    timeline.on_region_end("forward_pass")
    timeline.on_region_begin("backward_pass")
    device.set(weights, via=weights + 700)
    timeline.on_region_end("backward_pass")
    return timeline.on_step_end(step)


def rows_in(folder):
    return [json.loads(line) for line in (folder / "rank00000.memory.jsonl").read_text().splitlines()]


def test_snapshots_lie_at_both_edges_of_every_region_of_two_steps(tmp_path):
    timeline, device = MemoryTimeline(first_step=2), Device()
    said = [train_step(timeline, device, step, weights=100) for step in range(6)]
    assert said == [{}, {}, {"profiled": True}, {"profiled": True}, {}, {}]  # disturbed: not for step times
    timeline.on_close(tmp_path, 0)
    seen = [row for row in rows_in(tmp_path) if row["kind"] == "snapshot"]
    assert [row["label"] for row in seen[:5]] == [
        "begin forward_pass", "end forward_pass", "begin backward_pass", "end backward_pass", "end of step",
    ]  # fmt: skip
    assert [row["step"] for row in seen] == [2] * 5 + [3] * 5
    assert all(row["host_bytes"] > 0 for row in seen)


def test_peak_is_split_even_where_it_was_reached_before_the_close_look(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    device = Device()
    timeline = MemoryTimeline(first_step=1, stats=device.stats, snapshot=device.snapshot, objects=lambda: ([], []))
    for step in range(3):
        train_step(timeline, device, step, weights=100)
    timeline.on_close(tmp_path, 0)
    (peak,) = [row for row in rows_in(tmp_path) if row["kind"] == "peak"]
    assert peak["peak_bytes"] == 800
    assert peak["between"] == ["begin backward_pass", "end backward_pass"]
    assert (peak["activations_bytes"], peak["temporary_bytes"]) == (600, 200)
