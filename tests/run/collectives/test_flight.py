"""The flight recorder gives gloo's collectives their group and size, whatever the trace's clock says."""

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepscope.analyze.collective_costs import collective_rows
from stepscope.analyze.rank_windows import rank_account
from stepscope.contract.collectives import OPS
from stepscope.contract.run_folder import rank_file
from stepscope.run.aligned import aligned
from stepscope.run.collectives import calls_of_operators, flight_calls
from stepscope.run.load import Run, load

RECORDED = Path(__file__).parents[2] / "data" / "gloo-mesh"
SHARD, TOKENS = 8288 * 4, 32 * 64 * 4


def by_group(run: Run, rank: int) -> list[tuple[str, str, int]]:
    c = run.ranks[rank].collectives
    return [(OPS[op], c.groups[g].desc, int(size)) for op, g, size in zip(c.op, c.group, c.full_bytes, strict=True)]


def test_recorded_mesh_has_its_groups_and_sizes() -> None:
    run = load(RECORDED, cache=False)
    step = [
        ("all_gather", "mesh_dp", 2 * SHARD),
        ("all_reduce", "mesh_tp", TOKENS),
        ("reduce_scatter", "mesh_dp", 2 * SHARD),
        ("all_reduce", "default_pg", 4),
    ]
    for rank in range(4):
        assert by_group(run, rank) == step * 2
    shared = aligned(run)
    assert len(shared.matches) == 2 * (2 + 2 + 2 + 1)
    assert all((wait >= 0).all() for wait in shared.wait_ns)
    assert shared.clocks.known.all()
    rows = collective_rows(shared, tuple(rank_account(r) for r in run.ranks))
    found = {(r.op, r.group.name): (r.count, r.size_bytes, r.group.size) for r in rows}
    assert found == {
        ("all_gather", "mesh_dp"): (2, 4 * SHARD, 2),
        ("all_reduce", "mesh_tp"): (2, 2 * TOKENS, 2),
        ("reduce_scatter", "mesh_dp"): (2, 4 * SHARD, 2),
        ("all_reduce", "default_pg"): (2, 8, 4),
    }


@pytest.mark.parametrize("shift_ms", [20, -10_000])
def test_shifted_trace_finds_the_same_calls(tmp_path: Path, shift_ms: int) -> None:
    """The file's clock moved, the flight recorder's did not."""
    for path in RECORDED.glob("rank*"):
        shutil.copy(path, tmp_path)
    path = tmp_path / rank_file(2, "pt.trace.json.gz")
    document = json.loads(gzip.decompress(path.read_bytes()))
    document["baseTimeNanoseconds"] += shift_ms * 1_000_000
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    run, before = load(tmp_path, cache=False), load(RECORDED, cache=False)
    assert [by_group(run, r) for r in range(4)] == [by_group(before, r) for r in range(4)]
    assert len(aligned(run).matches) == 14


def test_without_the_recorder_groups_are_unknown(tmp_path: Path) -> None:
    for path in RECORDED.glob("*.json.gz"):
        shutil.copy(path, tmp_path)
    run = load(tmp_path, cache=False)
    assert {group for _, group, _ in by_group(run, 0)} == {"unknown"}


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"\0" * 99, lambda b: b"[]\n7\n{}", lambda b: b""]
)
def test_damaged_file_is_read_as_far_as_it_goes(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    for path in RECORDED.glob("rank00000*"):
        shutil.copy(path, tmp_path)
    path = tmp_path / rank_file(0, "flight_recorder.jsonl")
    path.write_bytes(damage(path.read_bytes()))
    assert len(load(tmp_path, cache=False).ranks[0].collectives) == 8


def write_calls(path: Path, calls: list[tuple[float, str, str, int]]) -> None:
    groups = [{"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3]}, {"name": "1", "desc": "dp", "ranks": [0, 2]}]
    lines = [{"schema": 1, "rank": 0, "process_groups": groups}]
    lines += [
        {
            "time_created_ns": round(at * 1000),
            "profiling_name": f"gloo:{op}",
            "process_group": [group, ""],
            "input_sizes": [[elements]],
            "input_dtypes": ["Float"],
        }
        for at, op, group, elements in calls
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_repeated_sequences_are_told_apart_by_the_time_between_calls(tmp_path: Path) -> None:
    """Three all-reduces a step, all alike; only in the second of four places do the gaps fit."""
    gaps = ((0, 40, 90), (0, 55, 60), (0, 10, 95), (0, 41, 92))
    times = [1000 * step + gap for step, of_step in enumerate(gaps) for gap in of_step]
    path = tmp_path / "flight.jsonl"
    write_calls(path, [(at, "all_reduce", "1" if 1000 <= at < 2000 else "0", 7) for at in times])
    calls = flight_calls(path)
    elsewhere_us = 5_000_000 + 1000 + np.array(gaps[1])
    found = calls_of_operators(calls, ["all_reduce"] * 3, 1000 * elsewhere_us)
    assert [(call.group.desc, call.size_bytes) for call in found if call] == [("dp", 28)] * 3
