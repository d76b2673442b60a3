"""Throughput, MFU, alerts and late ranks of a running loop, and the same scalars in every place they are sent to."""

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from stepscope.lab.tracker import Alert, PerformanceTracker
from stepscope.record.batch_contents import contents_of
from stepscope.record.straggler_detector import Exchange, FolderChannel


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_throughput_and_mfu_follow_from_what_was_fed():
    clock, batch = Clock(), {"input_ids": torch.zeros(4, 100, dtype=torch.long)}
    tracker = PerformanceTracker(flops_per_token=1e9, peak_tflops=2.0, world_size=2, clock=clock)
    for _ in range(3):
        clock.now_s += 0.5
        found = tracker.step(batch, loss=1.5)
    assert found["step/ms"] == pytest.approx(500) and found["loss"] == 1.5
    assert found["throughput/samples_per_s"] == pytest.approx(16)
    assert found["throughput/tokens_per_s"] == pytest.approx(1600)
    assert found["efficiency/mfu"] == pytest.approx(400e9 / 0.5 / 2e12)
    assert tracker.summary()["why_not"] == {}


def test_a_step_that_is_started_and_ended_is_timed_alone():
    clock = Clock()
    tracker = PerformanceTracker(world_size=2, clock=clock)
    for seconds in (0.25, 0.5):
        clock.now_s += 3.0  # not part of a step
        tracker.start_step()
        clock.now_s += seconds
        found = tracker.end_step(8)
    assert found["step_time_ms"] == pytest.approx(500) and found["throughput"] == pytest.approx(32)
    assert found["memory_gb"] == found.get("memory/peak_allocated_gb", found["memory/host_gb"]) > 0
    assert found["step/mean_ms"] == pytest.approx(375)
    clock.now_s += 1.0
    assert tracker.end_step(torch.zeros(5, 3))["throughput"] == pytest.approx(10)


def test_alerts_are_said_once_while_they_last():
    clock = Clock()
    heard: list[Alert] = []
    tracker = PerformanceTracker(window=40, clock=clock, on_alert=heard.append)
    for step in range(60):
        clock.now_s += 0.1 if step < 30 else 0.15
        tracker.step(samples=1)
    assert [alert.id for alert in heard] == ["slower"]
    clock.now_s += 1.0
    tracker.step(samples=1)
    assert heard[-1].id == "long-step" and "1000.0 ms" in heard[-1].text


def test_every_place_gets_the_same_scalars_and_the_report(tmp_path):
    (tmp_path / "report.html").write_text("<p>the report")
    clock, mine = Clock(), []
    places = [f"tensorboard:{tmp_path / 'tb'}", lambda step, values: mine.append((step, values))]
    tracker = PerformanceTracker(clock=clock, log_to=places)
    for _ in range(2):
        clock.now_s += 0.25
        tracker.step(samples=8)
    tracker.close(report=tmp_path / "report.html")
    assert [step for step, _ in mine] == [0, 1]
    assert mine[1][1]["throughput/samples_per_s"] == pytest.approx(32)
    assert (tmp_path / "tb" / "report.html").read_text() == "<p>the report"
    (events,) = (tmp_path / "tb").glob("events.out.tfevents.*")
    assert b"throughput/samples_per_s" in events.read_bytes()


class Words:
    """A channel in memory."""

    def __init__(self) -> None:
        self.words: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        self.words[key] = text

    def look(self, key: str) -> str | None:
        return self.words.get(key)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_ranks_hear_of_each_other_without_a_collective(kind, tmp_path):
    channel = Words() if kind == "memory" else FolderChannel(tmp_path / "words")
    ranks = [Exchange(rank=rank, world_size=3, channel=channel) for rank in range(3)]
    for own_ms, rank in zip(([10.0], [15.0], [10.2]), ranks, strict=True):
        rank.swap(own_ms)
    ranks[0].swap([10.0])  # rank 0 gathers what the others have left by now
    ranks[1].swap([15.0])
    assert ranks[0].known == ranks[1].known == {0: [10.0], 1: [15.0], 2: [10.2]}


TOKENS = torch.ones(4, 128, dtype=torch.long)
IMAGES, LABELS = torch.zeros(8, 3, 4, 4), torch.zeros(8, dtype=torch.long)
PADDED = torch.tensor([[1] * 128, [1] * 28 + [0] * 100, [1] * 64 + [0] * 64, [1] * 100 + [0] * 28])
PACKED = {"cu_seqlens": torch.tensor([0, 300, 512], dtype=torch.int32), "input_ids": TOKENS.view(1, 512)}


@pytest.mark.parametrize(
    ("batch", "samples", "tokens"),
    [
        (TOKENS, 4, 512), ({"input_ids": TOKENS, "attention_mask": PADDED}, 4, 320),
        ({"input_ids": TOKENS, "attention_mask": PADDED[:, None, None]}, 4, 512), (PACKED, 2, 512),
        (pack_sequence([torch.arange(5), torch.arange(3), torch.arange(2)]), 3, 10),
        (pack_sequence([torch.zeros(5, 7), torch.zeros(3, 7)]), 2, None), ([IMAGES, LABELS], 8, None),
        (IMAGES.to(torch.uint8), 8, None), ({"x": {"ids": (TOKENS,)}}, 4, 512), ((torch.tensor(1.0),), None, None),
        (None, None, None),
    ],
)  # fmt: skip
def test_contents_of_a_batch(batch, samples, tokens):
    assert contents_of(batch) == (samples, tokens)
