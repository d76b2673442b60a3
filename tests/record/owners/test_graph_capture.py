"""Captures as the recorder watches them: by a stand-in for CUDA's graph around real operators on the CPU."""

import gzip
import json
import sys
from types import SimpleNamespace

import pytest
import torch
from tests.analyze.build import COMPUTE_STREAM, RankTrace

import stepscope
from stepscope.contract.run_folder import trace_file
from stepscope.record.config import RecordConfig
from stepscope.record.owners.graph_capture import GraphCaptures
from stepscope.record.window.guards import ProfilerGuard
from stepscope.run.side_files import read_kernel_lines


class Graph:
    """torch.cuda.CUDAGraph as far as a capture needs it."""

    def capture_begin(self, *args, **named):
        self.calls: object = [(args, named)]

    def capture_end(self):
        if self.calls == "broken":
            raise RuntimeError("capture failed")

    def replay(self):
        pass


@pytest.fixture
def captures(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setenv("INDUCTOR_PROVENANCE", "1")
    begin, end = Graph.capture_begin, Graph.capture_end
    yield GraphCaptures(RecordConfig(graphs=True))
    Graph.capture_begin, Graph.capture_end = begin, end  # type: ignore[method-assign]


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x):
        x = self.up(x)
        x = torch.nn.functional.gelu(x)
        return self.down(x)


def captured(model):
    graph = Graph()
    graph.capture_begin("pool", capture_error_mode="global")
    model(torch.ones(2, 4))
    graph.capture_end()
    return graph


def launches_in(path, names=("aten::addmm", "aten::gelu")):
    """Write calls of CUDA into a trace of the CPU, as the profiler records them; return the launched operators."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"]
    ops = [e for e in events if e.get("name") in names]
    call = {"ph": "X", "cat": "cuda_runtime", "pid": ops[0]["pid"], "tid": ops[0]["tid"], "dur": 0.1}
    for n, op in enumerate(ops):
        args = {"correlation": n + 1, "External id": op["args"]["External id"]}
        events.append({**call, "name": "cudaLaunchKernel", "ts": op["ts"] + op["dur"] / 2, "args": args})
    first, last = min(op["ts"] for op in ops), max(op["ts"] + op["dur"] for op in ops)
    for name, ts in (("cudaStreamBeginCapture", first - 1), ("cudaStreamEndCapture", last + 1)):
        events.append({**call, "name": name, "ts": ts, "args": {"correlation": 100}})
    path.write_bytes(gzip.compress(json.dumps(document).encode()))
    return [op["name"] for op in ops]


def replay(folder, count):
    r = RankTrace(0)
    for k in range(3):
        t = 1000.0 * k
        r.step(k, t, t + 900)
        correlation = r.call("cudaGraphLaunch", t + 10, t + 13)
        for node in range(count):
            args = {"correlation": correlation, "device": 0, "stream": COMPUTE_STREAM, "graph node id": node}
            took = 100.0 * (node + 1)
            r._add("kernel", f"kernel{node}", t + 50 + 200 * node, t + 50 + 200 * node + took, pid=0, tid=7, args=args)
    r.write(folder)
    assert (folder / trace_file(0)).exists()


def test_the_profiler_is_free_for_the_window_after_a_capture(captures):
    guard = ProfilerGuard()
    guard.install()
    captured(Model())
    guard.remove()
    assert guard.is_free() and captures._files


def test_replayed_kernels_have_the_executing_lines_and_the_modules_of_the_capture(captures, tmp_path):
    captured(Model())
    captures.on_close(tmp_path, 0)
    assert launches_in(tmp_path / "rank00000.capture.0.pt.trace.json.gz") == [
        "aten::addmm",
        "aten::gelu",
        "aten::addmm",
    ]
    replay(tmp_path, 3)
    run = stepscope.load(tmp_path, cache=False)
    first = Model.forward.__code__.co_firstlineno
    lines = {
        row["line"]: row["device_ms"] for row in run.document["code"] if row["file"].endswith("test_graph_capture.py")
    }
    assert {n: lines[first + n] for n in (1, 2, 3)} == {n: pytest.approx(0.1 * n) for n in (1, 2, 3)}
    modules = {row["module"]: row["device_ms"] for row in run.document["modules"]}
    assert (modules["up"], modules["down"]) == (pytest.approx(0.1), pytest.approx(0.3))


def test_a_capture_of_backward_has_the_modules_of_the_forward_that_was_captured_before_it(captures, tmp_path):
    model, forward, backward = Model(), Graph(), Graph()
    forward.capture_begin()
    loss = model(torch.ones(2, 4, requires_grad=True)).sum()
    forward.capture_end()
    backward.capture_begin()
    loss.backward()
    backward.capture_end()
    captures.on_close(tmp_path, 0)
    for k, names in enumerate((("aten::addmm",), ("aten::mm",))):
        num = len(launches_in(tmp_path / f"rank00000.capture.{k}.pt.trace.json.gz", names))
    replay(tmp_path, num)
    modules = {row["module"]: row["device_ms"] for row in stepscope.load(tmp_path, cache=False).document["modules"]}
    assert (modules["down"], modules["up"]) == (pytest.approx(0.3), pytest.approx(0.7)), "of 0.1, 0.2, 0.3 and 0.4 ms"


def test_captures_are_those_of_an_unwatched_job_whatever_fails(captures, monkeypatch, capsys):
    graph = captured(Model())
    assert graph.calls == [(("pool",), {"capture_error_mode": "global"})]
    graph.calls = "broken"
    with pytest.raises(RuntimeError, match="capture failed"):
        graph.capture_end()
    monkeypatch.setattr("stepscope.record.owners.graph_capture.owners_of", lambda *_, **__: 1 / 0)
    captured(Model())
    captured(Model())
    assert capsys.readouterr().err.count("no longer watched: ZeroDivisionError") == 1
    assert not torch.autograd._profiler_enabled() and len(captures._files) == 1


def test_own_profiler_around_a_capture_is_left_alone(captures):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as own:
        captured(Model())
    assert any(event.key == "aten::addmm" for event in own.key_averages()) and not captures._files
    assert sys.getprofile() is None


def test_kernels_of_the_compiler_keep_their_lines(captures, tmp_path):
    """With what torch 2.13 sends where it writes structured logs of a compiled graph."""
    sent: list = []
    compiler = SimpleNamespace(trace_structured=lambda *args, **named: sent.append((args, named)))
    captures._patches.replace(compiler, "trace_structured", captures._noted)
    stacks = [
        '  File "/u/main.py", line 9, in step\n    y = m(x)\n  File "/u/m.py", line 19, in forward\n    y = x * 2\n'
    ]
    payload = {"name": "inductor_provenance_tracking_kernel_stack_traces", "encoding": "json"}
    for name, kernels in ((payload["name"], {"cpp_fused_mul_0:1": stacks}), ("another", {"x": []})):
        about = payload | {"name": name}
        compiler.trace_structured("artifact", metadata_fn=lambda: about, payload_fn=lambda: json.dumps(kernels))  # noqa: B023
    compiler.trace_structured("other")
    captures.on_close(tmp_path, 0)
    assert len(sent) == 3, "all of it reaches torch"
    assert read_kernel_lines(tmp_path, [0]) == {0: ({"cpp_fused_mul_0:1": (("/u/m.py", 19, "forward"),)},)}
