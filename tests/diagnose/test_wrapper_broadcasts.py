"""Buffers that a wrapper broadcasts in each forward pass have their line, and save what sending them takes."""

import numpy as np
import pytest
from tests.analyze.build import MAIN
from tests.analyze.owners.planted import PlantedRank
from tests.diagnose.matched import matched
from tests.diagnose.test_owned_findings import account

from stepscope.analyze.replay.changes import fewer_bytes
from stepscope.diagnose.communication import broadcasts_in_forward
from stepscope.diagnose.findings import diagnose

SENT_US = 500.0
BOTH = (0, 1)


def broadcast(r: PlantedRank, at: float, *stack: str, module: str = "") -> float:
    """One broadcast of 500 us in the forward pass, at train.py:10, before any compute."""
    with r.line("train.py:10"):
        r.annotation("DistributedDataParallel.forward", at - 2, at + SENT_US + 10)
    with r.line("train.py:10", *stack, module=module), r.op("c10d::broadcast_", at, at + 30):
        r.collective("broadcast", at=at + 5, start=at + 10, end=at + SENT_US, elements=1 << 20, thread=MAIN)
    with r.line("train.py:10", *stack, module=module):
        r.call("cudaStreamSynchronize", at + 40, at + SENT_US + 5)
    return at + SENT_US + 10


def buffers(r: PlantedRank, at: float, _: int) -> float:
    return broadcast(r, at, "lib:torch/nn/parallel/distributed.py:1695")


def by_hand(r: PlantedRank, at: float, _: int) -> float:
    return broadcast(r, at, "model.py:40")


def in_a_layer(r: PlantedRank, at: float, _: int) -> float:
    return broadcast(r, at, "lib:torch/nn/layer.py:9", module="blocks.0")


def test_buffers_sent_in_forward_have_its_line(tmp_path):
    found = account(tmp_path, ranks=2, late=dict.fromkeys(BOTH, buffers))
    (one,) = matched(found, "redundant-communication", "buffers")
    assert (one.id, one.match.where[0].text) == ("redundant-communication", "train.py:10")
    assert one.title == "4 MB of buffers broadcast in every forward pass (train.py:10)"
    said = next(f for f in diagnose(found).findings if f.title == one.title)
    assert said.alone_ns / 1000 == pytest.approx(SENT_US, rel=0.1)


def test_half_the_bytes_are_of_what_has_to_be_sent(tmp_path):
    found = account(tmp_path, ranks=2, late=dict.fromkeys(BOTH, buffers))
    (one,) = matched(found, "communication-bound")
    replay = found.owned_replay
    assert replay is not None and one.match.change is not None
    after = one.match.change(replay)
    for mask, old, new in zip(broadcasts_in_forward(found), replay.programs, after.programs, strict=True):
        sent = np.append(mask, False)[old.collective]
        assert sent.any() and (old.duration_ns[sent] == new.duration_ns[sent]).all()
    assert after.period_ns > fewer_bytes(replay, 0.5).period_ns
    assert one.match.what_if == (), "bytes=0.5x is of all bytes"


@pytest.mark.parametrize("plant", [by_hand, in_a_layer])
def test_other_broadcasts_are_not_the_wrapper_s(tmp_path, plant):
    found = account(tmp_path, ranks=2, late=dict.fromkeys(BOTH, plant))
    assert matched(found, "redundant-communication", "buffers") == []
