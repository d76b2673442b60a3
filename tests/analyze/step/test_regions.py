from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.phases import regions
from stepscope.contract.step_line import Region

FORWARD_OP = {"Sequence number": 5, "Fwd thread id": 0}
EVALUATE = "autograd::engine::evaluate_function: AddmmBackward0"


def found(tmp_path: Path, trace: RankTrace) -> dict[str, tuple[Region, bool]]:
    """Return region and `recomputed` by kernel name."""
    rank = built_run(tmp_path, [trace]).ranks[0]
    result = regions(rank)
    names = [rank.trace.text(int(n)) or "" for n in rank.work.name]
    return {n: (Region(r), bool(c)) for n, r, c in zip(names, result.region, result.recomputed, strict=True)}


@pytest.fixture
def trace() -> RankTrace:
    """A step without annotations: main thread until 90, backward until 200, clipping, optimizer, zero_grad."""
    r = RankTrace()
    r.step(0, 0, 400)
    with r.op("aten::embedding", 5, 15):  # no gradients: a frozen part of the model
        r.kernel("frozen", at=10, start=20, end=30)
    with r.op("aten::mm", 20, 30, **FORWARD_OP):
        r.kernel("forward", at=25, start=40, end=50)
    with r.op(EVALUATE, 90, 98, thread=AUTOGRAD, **{"Sequence number": 6, "Fwd thread id": 1}):
        r.kernel("loss", at=92, start=100, end=110, thread=AUTOGRAD)
    with r.op(EVALUATE, 100, 200, thread=AUTOGRAD, **{"Sequence number": 5, "Fwd thread id": 1}):
        r.kernel("backward", at=110, start=120, end=130, thread=AUTOGRAD)
        with r.op("aten::gelu", 140, 160, thread=AUTOGRAD, **FORWARD_OP):
            r.kernel("recomputed", at=150, start=160, end=170, thread=AUTOGRAD)
        with r.op("aten::mm", 170, 180, thread=AUTOGRAD):
            r.kernel("gradient", at=172, start=180, end=190, thread=AUTOGRAD)
    r.kernel("engine callback", at=210, start=220, end=225, thread=AUTOGRAD)
    with r.op("aten::_foreach_norm", 230, 240):
        r.kernel("clip", at=235, start=240, end=250)
    r.annotation("Optimizer.step#AdamW.step", 250, 300)
    with r.op("aten::_fused_adamw_", 260, 270):
        r.kernel("adam", at=265, start=280, end=290)
    return r


def test_parts_are_told_apart_without_annotations(tmp_path: Path, trace: RankTrace) -> None:
    trace.kernel("older", at=None, start=-20, end=-10)
    assert found(tmp_path, trace) == {
        "older": (Region.OTHER, False),
        "frozen": (Region.FORWARD, False),
        "forward": (Region.FORWARD, False),
        "loss": (Region.BACKWARD, False),
        "backward": (Region.BACKWARD, False),
        "recomputed": (Region.BACKWARD, True),
        "gradient": (Region.BACKWARD, False),
        "engine callback": (Region.BACKWARD, False),
        "clip": (Region.OTHER, False),
        "adam": (Region.OPTIMIZER, False),
    }


def test_backward_that_is_differentiated_itself_recomputes_nothing(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 500)
    for t in (100, 200, 300):
        inner = r.op("aten::mm", t + 10, t + 30, thread=AUTOGRAD, **FORWARD_OP)
        with r.op(EVALUATE, t, t + 50, thread=AUTOGRAD), inner:
            r.kernel(f"gradient {t}", at=t + 20, start=t + 40, end=t + 45, thread=AUTOGRAD)
    assert set(found(tmp_path, r).values()) == {(Region.BACKWARD, False)}


def test_annotations_decide_over_order(tmp_path: Path, trace: RankTrace) -> None:
    trace.annotation("data_loading", 60, 90)
    with trace.op("aten::rand", 65, 75, **FORWARD_OP):
        trace.kernel("augment", at=70, start=80, end=90)
    trace.annotation("forward", 310, 390)  # an evaluation after the step's backward
    trace.kernel("evaluation", at=320, start=330, end=340)
    parts = found(tmp_path, trace)
    assert parts["augment"] == (Region.DATA, False)
    assert parts["evaluation"] == (Region.FORWARD, False)


def test_closure_inside_the_optimizer_is_forward_and_backward(tmp_path: Path) -> None:
    r = RankTrace()
    r.step(0, 0, 500)
    r.annotation("Optimizer.step#LBFGS.step", 10, 400)
    with r.op("aten::mm", 20, 40, **FORWARD_OP):
        r.kernel("closure", at=30, start=50, end=60)
    with r.op(EVALUATE, 100, 200, thread=AUTOGRAD):
        r.kernel("closure backward", at=110, start=120, end=130, thread=AUTOGRAD)
    with r.op("aten::add_", 300, 320):
        r.kernel("update", at=310, start=330, end=340)
    parts = found(tmp_path, r)
    assert parts["closure"][0] is Region.FORWARD
    assert parts["closure backward"][0] is Region.BACKWARD
    assert parts["update"][0] is Region.OPTIMIZER


def test_graph_goes_by_device_annotation_else_other(tmp_path: Path, trace: RankTrace) -> None:
    trace.kernel("graph a", at=50, start=60, end=65, call="cudaGraphLaunch")
    trace.kernel("graph b", at=51, start=66, end=70, call="cudaGraphLaunch")
    trace.device_annotation("forward_pass", 59, 65.5)
    parts = found(tmp_path, trace)
    assert parts["graph a"][0] is Region.FORWARD
    assert parts["graph b"][0] is Region.OTHER
