"""Memory as the recorder writes it: categories, snapshots, the timeline of a step, the allocator's history."""

import dataclasses
import pickle

import torch
from tests.one_rank_group import one_rank_group
from tests.record.script_runs import json_lines

from stepscope.record.memory import MemoryHistory, MemoryTimeline, bucket_sizes, memory_snapshot, storages_of, totals


def trained(model):
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    return optimizer


def test_each_category_has_its_bytes():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.BatchNorm1d(8, affine=False))
    optimizer = trained(model)
    found = totals(storages_of(model.modules(), optimizers=[optimizer]), device="cpu")
    weight = 8 * 8 * 4
    assert found["parameters"] == weight
    assert found["gradients"] == weight
    assert found["optimizer"] == 2 * weight + 4  # two moments and the step count
    assert found["buffers"] == 2 * 8 * 4 + 8  # mean, variance, batch count


def test_buckets_of_ddp_are_counted_unless_gradients_are_views_of_them():
    with one_rank_group():
        for is_view in (False, True):
            model = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(2)])
            parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=is_view)
            for _ in range(2):  # the second step has the buckets in the order of the first
                parallel(torch.ones(1, 256)).sum().backward()
            weights = sum(p.numel() * 4 for p in model.parameters())
            assert sum(bucket_sizes(parallel.modules(), device="cpu")) == (0 if is_view else weights)
            assert bucket_sizes(parallel.modules(), device="cuda:0") == []


class Memory:
    """torch.cuda.memory as far as the history needs it."""

    def __init__(self, *, broken=False):
        self.calls = []
        self.broken = broken

    def _record_memory_history(self, **arguments):
        self.calls.append(arguments)

    def _snapshot(self):
        if self.broken:
            raise RuntimeError("out of host memory")
        return {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 512}]]}


def pretend_cuda(monkeypatch, *, history=False):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: history, raising=False)


def test_history_of_the_window_becomes_a_snapshot_file(tmp_path, monkeypatch):
    pretend_cuda(monkeypatch)
    memory = Memory()
    history = MemoryHistory(memory=memory, max_entries=7)
    history.on_window_start()
    history.on_window_end()
    history.on_close(tmp_path, 0)
    assert [p.name for p in tmp_path.iterdir()] == ["rank00000.memory.pickle"]
    found = pickle.loads((tmp_path / "rank00000.memory.pickle").read_bytes())
    assert found["device_traces"][0][0]["size"] == 512
    assert memory.calls[0]["max_entries"] == 7
    assert memory.calls[-1] == {"enabled": None}


def test_the_jobs_own_history_is_left_alone(tmp_path, monkeypatch, capsys):
    pretend_cuda(monkeypatch, history=True)
    memory = Memory()
    history = MemoryHistory(memory=memory)
    history.on_window_start()
    history.on_window_end()
    history.on_close(tmp_path, 0)
    assert memory.calls == []
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err.count("its own memory history") == 1


STATS = {
    "num_alloc_retries": 2,
    "allocated_bytes": {"all": {"current": 600, "peak": 900}},
    "reserved_bytes": {"all": {"current": 1000, "peak": 1200}},
}
SEGMENTS = [
    {"device": 0, "blocks": [{"size": 300, "state": "inactive"}, {"size": 600, "state": "active_allocated"}]},
    {"device": 0, "blocks": [{"size": 100, "state": "inactive"}]},
    {"device": 1, "blocks": [{"size": 5000, "state": "inactive"}]},
]


class Properties:
    total_memory = 10_000


def pretend_cuda_snapshots(monkeypatch, stats=STATS):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device=None: stats)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda **kw: SEGMENTS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)


def test_fragmentation_is_the_share_of_free_memory_no_single_request_can_use(monkeypatch):
    pretend_cuda_snapshots(monkeypatch)
    seen = memory_snapshot("now")
    assert seen.free_in_segments_bytes == 400
    assert seen.largest_free_block_bytes == 300
    assert seen.fragmentation == 0.25
    assert (seen.allocated_bytes, seen.reserved_bytes, seen.peak_allocated_bytes) == (600, 1000, 900)
    assert seen.device_total_bytes == 10_000


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


def test_snapshots_lie_at_both_edges_of_every_region_of_two_steps(tmp_path):
    timeline, device = MemoryTimeline(first_step=2), Device()
    said = [train_step(timeline, device, step, weights=100) for step in range(6)]
    assert said == [{}, {}, {"profiled": True}, {"profiled": True}, {}, {}]  # disturbed: not for step times
    timeline.on_close(tmp_path, 0)
    seen = [row for row in json_lines(tmp_path / "rank00000.memory.jsonl") if row["kind"] == "snapshot"]
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
    (peak,) = [row for row in json_lines(tmp_path / "rank00000.memory.jsonl") if row["kind"] == "peak"]
    assert peak["peak_bytes"] == 800
    assert peak["between"] == ["begin backward_pass", "end backward_pass"]
    assert (peak["activations_bytes"], peak["temporary_bytes"]) == (600, 200)
