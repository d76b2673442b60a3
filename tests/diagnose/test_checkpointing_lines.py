"""What is computed again has the line that asks for checkpointing, not those of the blocks."""

from tests.analyze.build import AUTOGRAD
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import account


def checkpointed(r: PlantedRank, at: float, _: int) -> float:
    """A block that model.py:3 checkpoints: what marks it, and its product at model.py:20."""
    with r.line("train.py:10", "model.py:3", "lib:torch/utils/checkpoint.py:800"):
        r.ran("_NoopSaveInputs", at, at + 5)
    with r.line("train.py:10", "model.py:3", "model.py:20"), r.op("aten::addmm", at + 6, at + 50):
        r.kernel("gemm", at=at + 10, start=at + 20, end=at + 120)
    return at + 130


def again(r: PlantedRank, at: float, n: int) -> float:
    """The same product in backward, at train.py:11."""
    node = "autograd::engine::evaluate_function: MmBackward0"
    args = {"Sequence number": 100 * n + 20, "Fwd thread id": 1}
    with r.line("train.py:11", "model.py:20"), r.op(node, at, at + 120, thread=AUTOGRAD, **args):
        inner = {"Sequence number": 100 * n + 30, "Fwd thread id": 0}
        with r.op("aten::addmm", at + 5, at + 50, thread=AUTOGRAD, **inner):
            r.kernel("gemm", at=at + 10, start=at + 20, end=at + 120, thread=AUTOGRAD)
    return at + 130


def test_recomputed_work_has_the_line_that_checkpoints(tmp_path):
    (one,) = matched(account(tmp_path, again, late={0: checkpointed}), "recomputation", "recomputed")
    assert [(place.text, place.share) for place in one.match.where] == [("model.py:3", 1.0)]


def test_without_such_a_line_the_finding_is_placed_by_its_time(tmp_path):
    (one,) = matched(account(tmp_path, again), "recomputation", "recomputed")
    assert one.match.where == ()
