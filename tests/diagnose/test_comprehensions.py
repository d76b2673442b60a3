"""The same calls for each element of a comprehension are named with what one call would save; loops are not."""

from pathlib import Path

import pytest
from tests.analyze.build import AUTOGRAD, built_run
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose

STEPS, LAYERS, HEADS = 4, 3, 8
CALL_US, NODE_US = 40.0, 30.0
ONE_BY_ONE = "each = [attention(q[:, h], k[:, h]) for h in range(8)]"
IN_TURN = "for h in range(8): x = attention(x, k[:, h])"


def layer(r: PlantedRank, at: float, number: int) -> float:
    """Heads at model.py:5, then a product at :6."""
    for head in range(HEADS):
        with r.line("train.py:10", "model.py:5"):
            r.ran("aten::select", at, at + 3)
            with r.op("aten::attention", at + 5, at + CALL_US - 2, **{"Sequence number": number + head}):
                r.kernel("attention", at=at + 10, start=at + 20, end=at + 25)
        at += CALL_US
    with r.line("train.py:10", "model.py:6"), r.op("aten::mm", at, at + 20, **{"Sequence number": number + HEADS}):
        r.kernel("gemm", at=at + 5, start=at + 15, end=at + 18)
    return at + 25


def a_step(r: PlantedRank, n: int, at: float) -> float:
    begin = at
    for k in range(LAYERS):
        at = layer(r, at + 5, 1000 * n + 100 * k)
    for k in reversed(range(LAYERS)):
        for head in reversed(range(HEADS)):
            args = {"Sequence number": 1000 * n + 100 * k + head, "Fwd thread id": 1}
            node = "autograd::engine::evaluate_function: AttentionBackward0"
            with (
                r.line("train.py:11"),
                r.op(node, at, at + NODE_US - 2, thread=AUTOGRAD, **args),
                r.op("aten::attention_backward", at + 2, at + NODE_US - 4, thread=AUTOGRAD),
            ):
                r.kernel("attention_back", at=at + 5, start=at + 15, end=at + 20, thread=AUTOGRAD)
            at += NODE_US
    with (
        r.line("train.py:12", "lib:site-packages/torch/optim/optimizer.py:500"),
        r.op("aten::_fused_adamw_", at, at + 50),
    ):
        r.kernel("adam", at=at + 10, start=at + 20, end=at + 40)
    r.step(n, begin, at + 60)
    return at + 60


def account(folder: Path, text: str | None) -> Account:
    r, at = PlantedRank(), 0.0
    for n in range(STEPS + 1):
        begin, at = at, a_step(r, n, at)
    r.write_owners(folder, (begin, at))
    r.events = [e for e in r.events if e["ts"] < r._local_ns(begin) / 1000]
    if text is not None:
        (folder / "source").mkdir()
        (folder / "source" / "model.py").write_text("\n" * 4 + f"        {text}\n        x = x @ w\n")
    return account_of(built_run(folder, [r]))


def test_one_call_saves_all_but_one_of_the_elements(tmp_path: Path) -> None:
    made = account(tmp_path, ONE_BY_ONE)
    (one,) = matched(made, "launch-overhead", "called")
    assert one.id == "launch-overhead" and (one.match.where[0].file, one.match.where[0].line) == ("model.py", 5)
    assert one.title == "aten::attention called 8 times per step (model.py:5)"
    finding = next(f for f in diagnose(made).findings if f.title == one.title)
    host_us = LAYERS * HEADS * (CALL_US + NODE_US)
    assert finding.alone_ns / 1000 == pytest.approx(host_us * (1 - 1 / HEADS), rel=0.1)
    assert finding.confidence <= 0.7


@pytest.mark.parametrize("text", [IN_TURN, None])
def test_what_may_wait_for_the_element_before_is_not_named(tmp_path: Path, text: str | None) -> None:
    assert matched(account(tmp_path, text), "launch-overhead", "called") == []
