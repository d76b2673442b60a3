"""A real trace cut anywhere: what was read is used, and no incomplete step passes for a whole one."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from stepscope.analyze.rank_windows import rank_account
from stepscope.errors import TraceError
from stepscope.run.load import load
from stepscope.run.rank import Rank

WHOLE = Path(__file__).parent.parent / "data" / "h200-fsdp2" / "rank0.json.gz"


def work_by_step(rank: Rank) -> dict[int, int]:
    if rank.steps.is_window:  # without a whole step, what was read is looked at as one stretch
        return {}
    counts = Counter(rank.work.step.tolist())
    return {int(number): counts[i] for i, number in enumerate(rank.steps.number)}


@pytest.mark.slow
def test_cut_at_every_64th_keeps_only_whole_steps(tmp_path: Path) -> None:
    content = gzip.decompress(WHOLE.read_bytes())
    whole, path = work_by_step(load(WHOLE, cache=False).ranks[0]), tmp_path / "rank0.json"
    kept, read = Counter[int](), []
    for k in range(1, 64):
        path.write_bytes(content[: len(content) * k // 64])
        run = load(path, cache=False)
        assert any(line.startswith("cut off") for line in run.warnings)
        found = work_by_step(run.ranks[0])
        assert found.items() <= whole.items()
        assert len(found) < len(whole)
        assert rank_account(run.ranks[0]) is not None
        assert run.ranks[0].device_name == "NVIDIA H200"
        kept[len(found)] += 1
        read.append(run.ranks[0].trace.num_events)
    assert kept[len(whole) - 1] >= 2, "late cuts cost no more than the last steps"
    assert read == sorted(read)


def test_cut_before_the_first_event_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(gzip.decompress(WHOLE.read_bytes())[:1200])
    with pytest.raises(TraceError):
        load(path, cache=False)
