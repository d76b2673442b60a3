"""Traces of several ranks in one file: split into the ranks that were merged, or refused with the reason."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.diagnose.late import late_run

import stepscope
from stepscope.errors import InputError
from stepscope.run.load import load

RANKS = 4
Event = dict[str, Any]


def events_of(folder: Path) -> list[list[Event]]:
    files = sorted(folder.glob("rank*.trace.json*"))
    read = (gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes() for f in files)
    return [json.loads(text)["traceEvents"] for text in read]


def by_ranges(event: Event, rank: int) -> None:
    """Number processes as TraceFusion does."""
    event["pid"] = event["pid"] % 1000 + 100_000_000 * rank
    if "correlation" in event.get("args", {}):
        event["args"]["correlation"] += 100_000_000 * rank


def by_labels(event: Event, rank: int) -> None:
    """Put the rank in front of the process."""
    event["pid"] = f"[rank {rank}] {event['pid']}"


def on_one_device(event: Event, rank: int) -> None:
    """Keep the numbers of launches, and the device, of every rank."""
    event["pid"] = 0 if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") else 1000 + rank


def merged(folder: Path, renumber: Callable[[Event, int], None]) -> Path:
    late_run(folder / "apart", ranks=RANKS, late_rank=1)
    events = []
    for rank, own in enumerate(events_of(folder / "apart")):
        for event in own:
            renumber(event, rank)
        events += own
    (path := folder / "merged.json").write_text(json.dumps({"traceEvents": events}))
    return path


@pytest.mark.parametrize("renumber", [by_ranges, by_labels])
def test_merged_ranks_are_the_run_they_were(tmp_path: Path, renumber: Callable[[Event, int], None]) -> None:
    path = merged(tmp_path, renumber)
    apart, together = stepscope.load(tmp_path / "apart"), stepscope.load(path)
    assert [r.rank for r in together.run.ranks] == [0, 1, 2, 3]
    assert [s.rank for s in together.account.stragglers] == [s.rank for s in apart.account.stragglers] == [1]
    steps = [one.account.step for one in (together, apart)]
    assert [step and step.step_ns for step in steps] == pytest.approx([3_450_000.0] * 2, rel=0.01)


def test_device_work_of_no_single_process_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"4 processes.*several ranks were merged"):
        load(merged(tmp_path, on_one_device))
