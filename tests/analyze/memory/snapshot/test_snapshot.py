"""A recorded snapshot gives the allocator's own bytes at every mark; constructed ones what was planted."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.analyze.memory_snapshot import PURPOSES, history_of, purposes_of, snapshot_view
from stepscope.records import Row
from stepscope.trace.memory_snapshot import read_memory_snapshot
from stepscope.whatif.memory import MemoryJob, would_have_fitted

DATA = Path(__file__).parents[3] / "data" / "memory_snapshot"
MB = 1 << 20


def test_allocated_bytes_at_the_marks_are_exact() -> None:
    """Marks are found by what happened: the optimizer's notes, and the first event of backward."""
    truth = json.loads((DATA / "truth.json").read_text())
    snapshot = read_memory_snapshot(DATA / "snapshot.pickle.gz")
    history = history_of(snapshot)
    part = purposes_of(snapshot, history).part
    assert history.differs_bytes == 0
    noted = [a.time_us for a in snapshot.annotations]
    at = [int(np.searchsorted(snapshot.time_us, time_us, side="right")) - 1 for time_us in noted]
    cleared = [i for a, i in zip(snapshot.annotations, at, strict=True) if "zero_grad" in a.name and not a.begins]
    for step, marks in enumerate(truth["marks"]):
        before_step, after_step = at[4 * step], at[4 * step + 1]
        begin = 0 if step == 0 else cleared[step - 1]
        backward = begin + int(np.flatnonzero(part[begin:before_step] == 1)[0])
        seen = [int(history.allocated_bytes[i]) for i in (backward - 1, before_step, after_step)]
        assert seen == [marks["after_forward"], marks["after_backward"], marks["after_step"]]
        if step:
            assert int(history.allocated_bytes[begin]) == marks["start"]
        else:
            assert marks["start"] in history.allocated_bytes[:backward]
    assert snapshot.reserved_bytes == truth["reserved"] and snapshot.allocated_bytes == history.allocated_bytes[-1]


def test_purposes_of_the_recorded_snapshot_sum_to_the_allocators_number() -> None:
    truth = json.loads((DATA / "truth.json").read_text())
    snapshot = read_memory_snapshot(DATA / "snapshot.pickle.gz")
    history = history_of(snapshot)
    purposes = purposes_of(snapshot, history)
    for event in range(-1, len(snapshot.action), 370):
        expected = history.before_bytes if event < 0 else int(history.allocated_bytes[event])
        assert sum(purposes.at(history, event).values()) == expected
    view = snapshot_view(snapshot)
    at_end = view.end.by_purpose
    assert at_end["weights"] == truth["param_bytes"] and at_end["activations"] == at_end["gradients"] == 0
    state = at_end["optimizer_state"]
    assert state is not None and state == pytest.approx(2 * truth["param_bytes"], rel=0.03)
    assert at_end["reserved_unused"] == truth["reserved"] - view.end.allocated_bytes
    assert view.peak.by_line[0].place == "capture.py:214 (memory_snapshot)" and not view.leaks


class Allocator:
    """Writes a snapshot of one segment with room for all, each allocation above the last."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.live: dict[int, int] = {}
        self.top = 1 << 30
        self.time_us = 0
        self._event("segment_alloc", self.top, 1000 * MB, [])

    def get(self, size: int, *frames: tuple[str, int, str]) -> int:
        address, self.top = self.top, self.top + size
        self.live[address] = size
        self._event("alloc", address, size, [{"filename": f, "line": n, "name": name} for f, n, name in frames])
        return address

    def free(self, address: int, *frames: tuple[str, int, str]) -> None:
        size = self.live.pop(address)
        for action in ("free_requested", "free_completed"):
            self._event(action, address, size, [{"filename": f, "line": n, "name": name} for f, n, name in frames])

    def note(self, stage: str) -> None:
        self.time_us += 1
        self.notes.append({"stage": stage, "name": "Optimizer.step#SGD.step", "device": 0, "time_us": self.time_us})

    def write(self, path: Path) -> None:
        at, blocks = 1 << 30, []
        for address, size in sorted(self.live.items()):
            if address > at:
                blocks.append({"address": at, "size": address - at, "state": "inactive"})
            blocks.append({"address": address, "size": size, "state": "active_allocated", "frames": []})
            at = address + size
        blocks.append({"address": at, "size": (1 << 30) + 1000 * MB - at, "state": "inactive"})
        segment = {"device": 0, "address": 1 << 30, "total_size": 1000 * MB, "stream": 0, "segment_type": "large"}
        found = {
            "segments": [{**segment, "allocated_size": sum(self.live.values()), "blocks": blocks}],
            "device_traces": [self.events],
            "external_annotations": self.notes,
        }
        path.write_bytes(pickle.dumps(found))

    def _event(self, action: str, address: int, size: int, frames: list[dict[str, Any]]) -> None:
        self.time_us += 1
        event = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": self.time_us}
        self.events.append({**event, "frames": frames})


MODEL = (("torch/nn/modules/module.py", 900, "_apply"), ("train.py", 3, "main"))
FORWARD = (("torch/nn/functional.py", 9, "linear"), ("train.py", 7, "forward"))
LEAK = (("train.py", 8, "forward"),)
BACKWARD = (("??", 0, "torch::autograd::generated::MmBackward0::apply(x)"),)
OPTIMIZER = (("torch/optim/sgd.py", 9, "step"), ("train.py", 11, "main"))
REDUCER = (("??", 0, "c10d::Reducer::initialize_buckets()"), ("train.py", 4, "main"))


def trained(path: Path, *, steps: int = 4, leak: int = 0) -> Row:
    a = Allocator()
    a.get(8 * MB, *MODEL)
    a.get(2 * MB, *REDUCER)
    for step in range(steps):
        activation = a.get(32 * MB, *FORWARD)
        if leak:
            a.get(leak, *LEAK)
        gradient = a.get(8 * MB, *BACKWARD)
        scratch = a.get(4 * MB, *BACKWARD)
        a.free(scratch, *BACKWARD)
        a.free(activation, *BACKWARD)
        a.note("START")
        if step == 0:
            a.get(8 * MB, *OPTIMIZER)
        a.note("END")
        a.free(gradient, ("train.py", 12, "main"))
    a.write(path)
    return snapshot_view(read_memory_snapshot(path))


def test_planted_purposes_are_found(tmp_path: Path) -> None:
    view = trained(tmp_path / "s.pickle")
    known = {k: v // MB for k, v in view.peak.by_purpose.items() if v}
    assert known == {
        "weights": 8, "communication_buffers": 2, "activations": 32, "gradients": 8, "temporaries": 4,
        "optimizer_state": 8, "reserved_unused": 1000 - 62,
    }  # fmt: skip
    assert view.peak.by_line[0].place == "train.py:7 (forward)" and not view.leaks
    assert view.step_end_bytes == [26 * MB] * 4 and view.step_peak_bytes == [54 * MB, 62 * MB, 62 * MB, 62 * MB]


GATHER = (("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 70, "all_gather"), ("hook.py", 1, "hook"))
RECOMPUTED = (("train.py", 7, "forward"), ("torch/utils/checkpoint.py", 1550, "recompute_fn"))


def test_frees_that_carry_the_stack_of_the_allocation_do_not_end_backward(tmp_path: Path) -> None:
    """As torch 2.11 writes them: frees have the stack of their block, backward's threads have none."""
    a = Allocator()
    a.get(8 * MB, *MODEL)
    for _ in range(3):
        activations = [a.get(16 * MB, *FORWARD) for _ in range(2)]
        scratch = a.get(4 * MB)
        a.free(activations[1], *FORWARD)
        gathered = a.get(2 * MB, *GATHER)
        again = a.get(6 * MB, *RECOMPUTED)
        gradient = a.get(20 * MB)
        a.free(activations[0], *FORWARD)
        a.free(again, *RECOMPUTED)
        a.free(gathered, *GATHER)
        a.free(scratch)
        a.note("START")  # a step that allocates nothing
        a.note("END")
        a.free(gradient)
    a.write(tmp_path / "s.pickle")
    view = snapshot_view(read_memory_snapshot(tmp_path / "s.pickle"))
    known = {k: v // MB for k, v in view.peak.by_purpose.items() if v}
    assert known == {"weights": 8, "activations": 16, "gradients": 20, "temporaries": 12, "reserved_unused": 1000 - 56}


def test_leak_is_named_with_its_line(tmp_path: Path) -> None:
    view = trained(tmp_path / "s.pickle", leak=MB)
    (leak,) = view.leaks
    assert (leak.place, leak.steps, leak.size_bytes) == ("train.py:8 (forward)", 4, 4 * MB)
    assert view.step_end_bytes == [(27 + i) * MB for i in range(4)]


def test_what_was_there_before_is_unknown_with_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "s.pickle"
    trained(path)
    found = pickle.loads(path.read_bytes())
    found["device_traces"] = [found["device_traces"][0][20:]]
    path.write_bytes(pickle.dumps(found))
    view = snapshot_view(read_memory_snapshot(path))
    assert view.end.by_purpose["weights"] is None and view.end.by_purpose["optimizer_state"] is None
    assert "before the history" in view.reasons["weights"]
    assert sum(view.end.by_purpose[p] or 0 for p in PURPOSES) == view.end.allocated_bytes == 18 * MB
    said = {1 << 30: "parameters"}
    told = snapshot_view(read_memory_snapshot(path), storages=said)
    assert told.end.by_purpose["weights"] == 8 * MB


@pytest.mark.parametrize("requested", [48, 72, 900])
def test_request_that_failed_and_what_would_have_fitted(tmp_path: Path, requested: int) -> None:
    """Of 101 MB that can be had 18 are weights, state and buckets, 32 are activations; a piece of 44 MB is free."""
    path = tmp_path / "s.pickle"
    trained(path, steps=1)
    found = pickle.loads(path.read_bytes())
    events, (segment,) = found["device_traces"][0], found["segments"]
    frames = [{"filename": f, "line": n, "name": name} for f, n, name in FORWARD]
    top = segment["blocks"][-1]["address"]
    events.append({"action": "alloc", "addr": top, "size": 32 * MB, "stream": 0, "time_us": 99, "frames": frames})
    left = {"address": top + 32 * MB, "size": 4 * MB, "state": "inactive"}
    segment["blocks"][-1:] = [{"address": top, "size": 32 * MB, "state": "active_allocated", "frames": frames}, left]
    segment["total_size"] = events[0]["size"] = left["address"] + 4 * MB - segment["address"]
    failed = {"action": "oom", "device_free": 3 * MB, "size": requested * MB, "stream": 0, "frames": frames}
    events += [{**failed, "time_us": 100}, {"action": "snapshot", "addr": 0, "size": 0, "time_us": 101}]
    path.write_bytes(pickle.dumps(found))
    view = snapshot_view(read_memory_snapshot(path))
    error = view.out_of_memory
    assert error is not None
    assert (error.place, error.purpose, error.phase) == ("train.py:7 (forward)", "activations", "forward")
    assert (
        error.allocated_bytes == sum(v for k, v in error.by_purpose.items() if v and k != "reserved_unused") == 50 * MB
    )
    assert error.missing_bytes == (requested - 44) * MB and error.reachable_bytes == 101 * MB
    assert error.by_line[0].place == "train.py:7 (forward)"
    rows = {row.change: row.fits for row in would_have_fitted(view, MemoryJob(replicas=4, layers=2))}
    assert rows.pop("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", False) == (50 + requested <= 101)
    assert rows["zero=1"] == (requested < 60), "it frees 6 MB of state"
    largest = {48: 91, 72: 79, 900: 8}[requested]  # the piece of 44 MB; then (101 - 18) / (32 + requested)
    assert rows[f"batch={largest / 100}x"] is True
