"""Kernels of CUDA graphs have the lines and modules of their capture, on constructed traces of both."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.analyze.build import COMPUTE_STREAM, RankTrace

import stepscope
from stepscope.analysis import Analysis
from stepscope.contract.run_folder import trace_file

# an operation of a layer: its operator, the line in model.py, how many kernels it launches, and their duration
OPS = (("aten::addmm", 12, 1, 40), ("aten::gelu", 13, 1, 20), ("aten::native_layer_norm", 14, 2, 10))
LAYERS = 2


def captured(
    *, layers: Sequence[int] = range(LAYERS), per_layer: bool = False, ops: Sequence[Any] = OPS
) -> dict[str, Any]:
    """Return the trace of a capture: layers in a function of the model, launches that run nothing."""
    r = RankTrace(0)
    now = 0.0

    def call(name: str) -> None:
        nonlocal now
        r.call(name, now, now + 1)
        now += 2

    r.python("train.py(3): main", 0, 10_000)
    if not per_layer:
        call("cudaStreamBeginCapture")
    for layer in layers:
        if per_layer:
            call("cudaStreamBeginCapture")
        begin = now
        r.python(f"nn.Module: Layer_{layer}", begin, begin + 100)
        now += 1
        for name, line, count, _ in ops:
            r.python(f"model.py({line}): op{line}", now, now + 10)
            with r.op(name, now + 1, now + 9):
                for k in range(count):
                    r.call("cudaLaunchKernel", now + 2 + 2 * k, now + 3 + 2 * k)
            now += 12
        now = begin + 102
        if per_layer:
            call("cudaStreamEndCapture")
    if not per_layer:
        call("cudaStreamEndCapture")
    return r.document()


def replayed(
    *, steps: int = 3, nodes: bool = True, per_layer: bool = False, layers: int = LAYERS, extra: int = 0, ops: Any = OPS
) -> dict[str, Any]:
    """Return the trace of replays; kernels of a graph have its launch's correlation, here in disorder of time."""
    r = RankTrace(0)
    for k in range(steps):
        t = 1000.0 * k
        r.step(k, t, t + 900)
        graphs = [[layer] for layer in range(layers)] if per_layer else [list(range(layers))]
        start = t + 50
        for n, graph in enumerate(graphs):
            correlation = r.call("cudaGraphLaunch", t + 10 + 5 * n, t + 13 + 5 * n)
            durations = [(name, ns) for _ in graph for name, _, count, ns in ops for _ in range(count)]
            durations += [("more", 5)] * extra
            for node, (name, took) in enumerate(durations):
                args = {"correlation": correlation, "device": 0, "stream": COMPUTE_STREAM}
                args |= {"graph node id": 7000 + node, "graph id": 3 + n} if nodes else {}
                r._add("kernel", f"kernel_of_{name}", start, start + took, pid=0, tid=COMPUTE_STREAM, args=args)
                start += took
    return r.document()


def run_of(folder: Path, replay: dict[str, Any], *captures: dict[str, Any]) -> Analysis:
    """Return the run; the first capture lies in the folder as the recorder leaves it, more are given."""
    for name, document in zip(
        (trace_file(0), f"rank00000.capture.{'pt.trace.json.gz'}"), (replay, *captures), strict=False
    ):
        (folder / name).write_bytes(gzip.compress(json.dumps(document).encode()))
    return stepscope.load(folder, cache=False)


def device_ms(run: Analysis, of: str, name: str) -> dict[str, float]:
    return {str(row[name]): row["device_ms"] for row in run.document[of] if row["device_ms"]}


@pytest.mark.parametrize("nodes", [True, False])
@pytest.mark.parametrize("per_layer", [True, False])
def test_lines_and_modules_of_the_capture_hold_the_time_of_the_kernels(tmp_path, nodes, per_layer):
    run = run_of(tmp_path, replayed(nodes=nodes, per_layer=per_layer), captured(per_layer=per_layer))
    lines = device_ms(run, "code", "line")
    assert {line: lines[line] for line in ("12", "13", "14")} == {
        str(line): pytest.approx(LAYERS * count * took / 1000) for _, line, count, took in OPS
    }
    assert lines["3"] == pytest.approx(sum(lines[n] for n in ("12", "13", "14"))), "main called all of it"
    modules = device_ms(run, "modules", "module")
    each = sum(count * took for _, _, count, took in OPS) / 1000
    assert modules == {f"Layer_{layer}": pytest.approx(each) for layer in range(LAYERS)}
    assert run.document["unowned"]["device_ms"] == 0
    assert not [line for line in run.document["warnings"] if "CUDA graphs" in line]


@pytest.mark.parametrize("why", ["another number of kernels", "several captures fit"])
def test_graphs_that_cannot_be_mapped_say_so_and_are_not_idle(tmp_path: Path, why: str) -> None:
    if why == "several captures fit":  # three captures, two launches per step
        run = run_of(tmp_path, replayed(per_layer=True), captured(layers=range(3), per_layer=True))
    else:
        run = run_of(tmp_path, replayed(extra=1), captured())
    launches = 6 if why == "several captures fit" else 3
    noted = [line for line in run.document["warnings"] if "launches of CUDA graphs" in line]
    assert (
        noted and f"{launches} of {launches} launches" in noted[0] and "no capture has the same operations" in noted[0]
    )
    busy = sum(count * took for _, _, count, took in OPS) * LAYERS / 1000
    assert run.document["ranks"][0]["compute_ms"] >= 3 * busy
    assert run.document["unowned"]["device_ms"] >= busy


@pytest.mark.parametrize(("begun_by", "own"), [("__enter__", ["prepare"]), ("make_graphed_callables", [])])
def test_kernels_have_the_lines_of_their_launch_and_below_it_those_of_their_capture(tmp_path, begun_by, own):
    """What ran before training, to make the capture, takes no time of a step; a set may run as the driver's kernel."""
    r = RankTrace(0)
    r.python("train.py(3): main", 0, 10_000)
    r.python("train.py(30): prepare", 1, 9_000)
    r.python(f"torch/cuda/graphs.py(50): {begun_by}", 2, 10)
    with r.op("aten::fill_", 3, 4):
        pass
    r.call("cudaStreamBeginCapture", 5, 6)
    r.python("model.py(12): layer", 20, 60)
    for at, name, call in ((30, "aten::zeros", "cudaMemsetAsync"), (40, "aten::mm", "cudaLaunchKernel")):
        with r.op(name, at, at + 8):
            r.call(call, at + 1, at + 2)
    r.call("cudaStreamEndCapture", 70, 71)
    capture, r = r.document(), RankTrace(0)
    r.python("train.py(3): main", 0, 4_000)
    for k in range(3):
        t = 1000.0 * k
        r.step(k, t, t + 900)
        r.python("train.py(20): step", t + 1, t + 890)
        correlation = r.call("cudaGraphLaunch", t + 10, t + 13)
        for n, name in enumerate(("memset32", "gemm")):
            args = {"correlation": correlation, "device": 0, "stream": COMPUTE_STREAM}
            r._add("kernel", name, t + 50 + 100 * n, t + 150 + 100 * n, pid=0, tid=COMPUTE_STREAM, args=args)
    run = run_of(tmp_path, r.document(), capture)
    assert device_ms(run, "code", "function") == dict.fromkeys(["main", "step", *own, "layer"], pytest.approx(0.2))


def test_captures_for_other_sizes_with_the_same_lines_count_as_one(tmp_path: Path) -> None:
    """A serving engine captures the same model for each batch size; a copy in the graph, none in the capture."""
    capture = captured()
    later = [dict(event, ts=event["ts"] + 20_000) for event in captured()["traceEvents"] if "ts" in event]
    capture["traceEvents"] += later
    run = run_of(tmp_path, replayed(), capture)
    assert device_ms(run, "code", "line")["12"] == pytest.approx(LAYERS * 40 / 1000)


def test_capture_given_for_a_foreign_trace(tmp_path: Path) -> None:
    path = tmp_path / "elsewhere" / "warmup.json"
    path.parent.mkdir()
    path.write_text(json.dumps(captured()))
    (tmp_path / "job").mkdir()
    plain = run_of(tmp_path / "job", replayed())
    assert plain.document["code"] == []
    run = stepscope.load(tmp_path / "job", captures=[path], cache=False)
    assert device_ms(run, "code", "line")["13"] == pytest.approx(LAYERS * 20 / 1000)


def test_time_of_graphs_without_kernels_is_unknown_and_not_idle(tmp_path: Path) -> None:
    """99 % of the device's time is in graphs whose kernels were not recorded, next to one small kernel per step."""
    r = RankTrace(0)
    for k in range(4):
        t = 1000.0 * k
        r.step(k, t, t + 990)
        r.kernel("first", at=t + 5, start=t + 10, end=t + 20)
        r.call("cudaGraphLaunch", t + 30, t + 60)
        with r.op("aten::item", t + 70, t + 985):
            r.call("cudaStreamSynchronize", t + 75, t + 980)
    run = run_of(tmp_path, r.document())
    parts = {row["part"]: row["pct"] for row in run.document["step"]["budget"]}
    assert parts["unknown"] > 95 and parts.get("launch_gap", 0) + parts.get("host_sync", 0) < 3, parts
    assert not run.document["findings"] and run.verdict == "unclear"
    assert any("4 of 4 launches of CUDA graphs" in line for line in run.document["recording"]["cannot_show"]) or (
        "CUDA graphs" in run.document["recording"]["line"]
    )


def test_compiled_kernels_have_the_lines_that_they_were_made_of(tmp_path: Path) -> None:
    """Both passes have a kernel of one name; one of two lines is between them, one of two functions nowhere."""
    forward = {"triton_poi_fused_relu_0:1": [(4, "f"), (5, "f")], "extern_kernels.addmm:2": [(6, "f")]}
    backward = {"extern_kernels.mm:1": [(6, "f")], "triton_poi_fused_relu_0:2": [(4, "f"), (9, "g")]}
    tables = [
        {name: [[["/home/u/model.py", str(n), of]] for n, of in lines] for name, lines in one.items()}
        for one in (forward, backward)
    ]
    (tmp_path / "rank00000.inductor.json").write_text(json.dumps(tables))
    r = RankTrace(0)
    for k in range(3):
        now = 1000.0 * k
        r.step(k, now, now + 900)
        start = now + 50
        for names in (("triton_poi_fused_relu_0", "aten::addmm"), ("aten::mm", "triton_poi_fused_relu_0")):
            with r.op("## Call CompiledFxGraph abc ##", now + 5, now + 40):
                for n, name in enumerate(names):
                    with r.op(name, now + 6 + 10 * n, now + 14 + 10 * n):
                        r.kernel(name, at=now + 8 + 10 * n, start=start, end=start + 100)
                    start += 100
            now += 50
    run = run_of(tmp_path, r.document())
    rows = {(row["line"], row["line_to"]): row["device_ms"] for row in run.document["code"]}
    assert rows == {(4, 5): pytest.approx(0.1), (6, 6): pytest.approx(0.2)}
    assert run.document["unowned"]["device_ms"] == pytest.approx(0.1)
    (tmp_path / "rank00000.inductor.json").write_text('[{"a:1": [[1, 2]]}, 7]')
    assert stepscope.load(tmp_path, cache=False).document["code"] == []


def test_captures_count_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    replay = replayed(per_layer=True, layers=12)
    for event in replay["traceEvents"]:
        if event.get("cat") == "kernel":
            event["dur"] *= 1 - (event["args"]["graph id"] - 3) / 20
    for layer in range(12):
        text = json.dumps(captured(layers=[layer], per_layer=True))
        (tmp_path / f"rank00000.capture.{layer}.pt.trace.json.gz").write_bytes(gzip.compress(text.encode()))
    each = sum(count * took for _, _, count, took in OPS) / 1000
    found = device_ms(run_of(tmp_path, replay), "modules", "module")
    assert found == {f"Layer_{layer}": pytest.approx(each * (1 - layer / 20)) for layer in range(12)}


def test_captures_of_compiled_graphs_have_the_lines_that_their_kernels_were_made_of(tmp_path: Path) -> None:
    table = {"triton_poi_fused_0:1": [[["/home/u/model.py", "4", "f"]]]}
    (tmp_path / "rank00000.inductor.json").write_text(json.dumps([table]))
    compiled = [("triton_poi_fused_0", 12, 1, 40)]
    run = run_of(tmp_path, replayed(layers=1, ops=compiled), captured(layers=[0], ops=compiled))
    assert device_ms(run, "code", "line")["4"] == pytest.approx(0.04)
