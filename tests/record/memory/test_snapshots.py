import torch

from stepscope.record.memory import MemorySampler, memory_snapshot

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


def pretend_cuda(monkeypatch, stats=STATS):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device=None: stats)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda **kw: SEGMENTS)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)


def test_fragmentation_is_the_share_of_free_memory_no_single_request_can_use(monkeypatch):
    pretend_cuda(monkeypatch)
    seen = memory_snapshot("now")
    assert seen.free_in_segments_bytes == 400
    assert seen.largest_free_block_bytes == 300
    assert seen.fragmentation == 0.25
    assert (seen.allocated_bytes, seen.reserved_bytes, seen.peak_allocated_bytes) == (600, 1000, 900)
    assert seen.device_total_bytes == 10_000


def test_step_line_has_device_memory_where_cuda_is_in_use(monkeypatch):
    pretend_cuda(monkeypatch)
    line = MemorySampler(period_ns=0).on_step_end(0)["memory"]
    assert line["allocated_bytes"] == 600
    assert line["peak_reserved_bytes"] == 1200
    assert line["allocator_retries"] == 2
