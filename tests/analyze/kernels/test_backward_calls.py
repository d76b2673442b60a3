"""The calls of backward passes are told by their names, and callers are looked for among them alone."""

from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.phases import ADDING, BACK, GRADIENT, NODE, backward_calls

EVALUATE = "autograd::engine::evaluate_function: "
STORE = "torch::autograd::AccumulateGrad"


def test_calls_of_backward_have_a_part_and_their_callers_among_themselves(tmp_path: Path) -> None:
    r = RankTrace(0)
    r.step(0, 0, 100)
    r.ran("aten::linear", 1, 5)
    with r.op(f"{EVALUATE}AddmmBackward0", 10, 20), r.op("aten::mm", 12, 18):
        pass
    with r.op(f"{EVALUATE}{STORE}", 30, 50), r.op("hook", 31, 49), r.op(STORE, 32, 40):
        pass
    r.ran("torch.distributed.ddp.reducer::copy_bucket_to_grad", 60, 70)
    backward = backward_calls(built_run(tmp_path, [r]).ranks[0])
    assert backward.part.tolist() == [NODE, GRADIENT, ADDING, BACK]
    assert backward.calls.parent.tolist() == [-1, -1, 1, -1]
    assert backward.only(NODE, ADDING).tolist() == [0, 2]
