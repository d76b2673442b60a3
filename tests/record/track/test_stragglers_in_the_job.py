"""Who is late, found while the job runs: own times exchanged without a collective."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from stepscope.contract.live import rank_scores
from stepscope.record.straggler_detector import Exchange, FolderChannel


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


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_one_late_rank_of_few_is_named(ranks: int) -> None:
    scores = rank_scores({**{rank: 10.0 + 0.01 * rank for rank in range(ranks - 1)}, ranks - 1: 14.0})
    assert [s.rank for s in scores if s.straggler] == [ranks - 1]
    assert scores[0].slowdown == pytest.approx(1.4, rel=0.01)


def test_equal_ranks_and_single_ones_are_not_late() -> None:
    assert not [s for s in rank_scores({0: 10.0, 1: 10.5, 2: 10.1}) if s.straggler]
    assert rank_scores({0: 10.0}) == [] and rank_scores({0: 0.0, 1: 0.0}) == []


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_ranks_hear_of_each_other_without_a_collective(kind: str, tmp_path: Path) -> None:
    channel = Words() if kind == "memory" else FolderChannel(tmp_path / "words")
    ranks = [Exchange(rank=rank, world_size=3, channel=channel) for rank in range(3)]
    for own_ms, rank in zip((10.0, 15.0, 10.2), ranks, strict=True):
        rank.swap(own_ms)
    ranks[0].swap(10.0)  # rank 0 gathers what the others have left by now
    ranks[1].swap(15.0)
    assert ranks[0].known == ranks[1].known == {0: 10.0, 1: 15.0, 2: 10.2}
