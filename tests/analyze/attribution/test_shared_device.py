"""Two ranks on one device: work that lay queued while the other rank's ran has that as its cause, and no other."""

import json
from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.budget import budgets
from stepscope.analyze.idle import CAUSE_NAMES
from stepscope.run.aligned import aligned


def two_ranks(folder: Path, uuids: tuple[str | None, str | None], *, ahead_us: float = 0) -> list[dict[str, float]]:
    """Return per rank its idle time by cause, us; in rank 0 a gap of 200 lies before queued work, and rank 1 runs for
    150 of it.
    """
    ranks = [RankTrace(rank, world_size=2, clock_offset_us=ahead_us * rank) for rank in range(2)]
    for r in ranks:
        r.step(0, 0, 2000)
        r.collective("allreduce", at=5, start=20, end=100)
    ranks[0].kernel("first", at=10, start=100, end=500)
    ranks[0].kernel("queued", at=15, start=700, end=1500)
    ranks[1].kernel("meanwhile", at=10, start=520, end=670)
    for r in ranks:
        r.collective("allreduce", at=50, start=1500, end=1900)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "world_size": 2}))
    for rank, uuid in enumerate(uuids):
        if uuid is not None:
            line = json.dumps({"kind": "device", "index": 0, "name": "NVIDIA H200", "uuid": uuid})
            (folder / f"rank{rank:05d}.telemetry.jsonl").write_text(line + "\n")
    found = budgets(aligned(built_run(folder, ranks)))
    out = []
    for budget in found:
        assert budget is not None
        assert (budget.part_ns.sum(axis=1) == budget.periods.dur_ns).all()
        out.append(dict(zip(CAUSE_NAMES, (budget.cause_ns.sum(axis=0) / 1000).tolist(), strict=True)))
        out[-1]["other_compute"] = float(budget.ns("other_compute").sum() / 1000)
    return out


@pytest.mark.parametrize("ahead_us", [0, 700])
def test_another_ranks_work_on_the_device_is_why(ahead_us: float, tmp_path: Path) -> None:
    first, _ = two_ranks(tmp_path, ("GPU-1", "GPU-1"), ahead_us=ahead_us)
    assert first["shared_device"] == pytest.approx(150, abs=1)
    assert first["queued"] == pytest.approx(50, abs=1)
    assert first["other_compute"] == first["shared_device"]


@pytest.mark.parametrize("uuids", [("GPU-1", "GPU-2"), (None, None), ("GPU-1", None)])
def test_work_on_another_device_is_not(uuids: tuple[str | None, str | None], tmp_path: Path) -> None:
    first, _ = two_ranks(tmp_path, uuids)
    assert (first["shared_device"], first["queued"]) == (0, 200)
