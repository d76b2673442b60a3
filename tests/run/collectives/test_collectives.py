"""Collectives of kernels, of gloo and of the flight recorder: operation, bytes, group, peers."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import MAIN, RankTrace, built_run
from tests.run.traces import Event, event, rank_of

from stepscope.analyze.collective_costs import collective_rows, rank_account
from stepscope.contract.operations import OPS
from stepscope.contract.run_folder import rank_file
from stepscope.run.aligned import aligned
from stepscope.run.collectives import Collectives, calls_of_operators, flight_calls
from stepscope.run.load import Run, load
from stepscope.run.rank import Rank


def rank(folder: Path, trace: RankTrace) -> Rank:
    return built_run(folder, [trace]).ranks[0]


def ops(c: Collectives) -> list[str]:
    return [OPS[o] for o in c.op]


def test_operation_bytes_and_group_of_a_record(tmp_path: Path) -> None:
    trace = RankTrace(1, world_size=4, descriptions={"0": "default_pg"})
    trace.step(3, 0, 900)
    trace.collective("allreduce", at=10, start=50, end=90, elements=100)
    trace.collective("_allgather_base", at=110, start=150, end=190, elements=100, out_elements=400, dtype="BFloat16")
    trace.collective("_reduce_scatter_base", at=210, start=250, end=290, elements=400, out_elements=100, dtype="Half")
    c = rank(tmp_path, trace).collectives
    assert ops(c) == ["all_reduce", "all_gather", "reduce_scatter"]
    assert c.in_bytes.tolist() == [400, 200, 800]
    assert c.out_bytes.tolist() == [400, 800, 200]
    assert c.full_bytes.tolist() == [400, 800, 800]
    assert c.step.tolist() == [0, 0, 0]
    assert [g.ranks for g in c.groups] == [(0, 1, 2, 3)]
    assert c.unjoined == 0


def test_range_around_the_launch_names_the_operation_and_shapes_give_bytes(tmp_path: Path) -> None:
    """Versions without arguments: an all-to-all is a kernel of sends and receives."""
    trace = RankTrace(0, world_size=2)
    trace.step(0, 0, 900)
    shapes: dict[str, Any] = {"Input Dims": [[6144], []], "Input type": ["float", ""]}
    with trace.op("record_param_comms", 5, 30, **shapes):
        trace.annotation("nccl:all_to_all", 6, 29)
        trace.kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", at=10, start=40, end=60)
    c = rank(tmp_path, trace).collectives
    assert ops(c) == ["all_to_all"]
    assert c.in_bytes.tolist() == c.out_bytes.tolist() == [24576]


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


def write_calls(path: Path, calls: list[tuple[float, str, str, int]]) -> None:
    groups = [{"name": "0", "desc": "default_pg", "ranks": [0, 1, 2, 3]}, {"name": "1", "desc": "dp", "ranks": [0, 2]}]
    lines = [{"schema": 1, "rank": 0, "process_groups": groups}]
    lines += [
        {
            "record_id": number, "collective_seq_id": number + 1, "time_created_ns": round(at * 1000),
            "profiling_name": f"gloo:{op}", "process_group": [group, ""], "input_sizes": [[elements]],
            "input_dtypes": ["Float"],
        }
        for number, (at, op, group, elements) in enumerate(calls)
    ]  # fmt: skip
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


RECORDED_DDP = Path(__file__).parents[2] / "data" / "gloo-ddp"
RUNLOOP = 301


def asked(op: str, at: float, *shapes: list[int], values: list[str] | None = None) -> Event:
    concrete: dict[str, Any] = {"Concrete Inputs": values} if values else {}
    return event("cpu_op", f"c10d::{op}_", at, 5, **{"Input Dims": list(shapes), "Input type": ["float"]}, **concrete)  # type: ignore[arg-type]


def ran(op: str, start: float, end: float, elements: int, tid: int = RUNLOOP) -> Event:
    shape: dict[str, Any] = {"Input Dims": [[elements]], "Input type": ["float"]}
    return event("user_annotation", f"gloo:{op}", start, end - start, tid=tid, **shape)


def world(size: int) -> dict[str, Any]:
    group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": size, "ranks": list(range(size))}
    return {"distributedInfo": {"rank": 0, "world_size": size, "pg_config": [group]}}


def test_recorded_run_is_joined_matched_and_aligned() -> None:
    run = load(RECORDED_DDP, cache=False)
    shared = aligned(run)
    buckets = [67848 * 4, 16640 * 4, 4]
    for rank in run.ranks:
        c = rank.collectives
        assert c.in_bytes.tolist() == buckets * 4
        assert c.step.tolist() == [k for k in range(4) for _ in range(3)]
        assert c.unanswered == c.unjoined == 0
        assert (c.issue_ns < c.start_ns).all()
        assert rank.device_name == "CPU"
    assert len(shared.matches) == 12
    assert abs(int(shared.clocks.offset_ns[1])) <= shared.clocks.uncertainty_ns[1], "one machine, one clock"
    assert shared.wait_ns[0].sum() > 10 * shared.wait_ns[1].sum(), "rank 1 slept in every step"


def test_reduce_scatter_runs_as_an_all_reduce(tmp_path: Path) -> None:
    """The meaning is the operator's: what it gives and takes differs."""
    events = [
        asked("_reduce_scatter_base", 0, [500], [1000]),
        asked("allreduce", 20, [1000]),
        asked("_allgather_base", 40, [2000], [1000]),
        ran("all_reduce", 10, 15, 1000),
        ran("all_reduce", 30, 35, 1000),
        ran("all_gather", 50, 55, 1000),
    ]
    c = rank_of(tmp_path, events, **world(2)).collectives
    assert [OPS[o] for o in c.op] == ["reduce_scatter", "all_reduce", "all_gather"]
    assert c.in_bytes.tolist() == [4000, 4000, 4000]
    assert c.out_bytes.tolist() == [2000, 4000, 8000]
    assert c.full_bytes.tolist() == [4000, 4000, 8000]
    assert c.groups[0].size == 2


def test_threads_that_start_out_of_order_are_told_apart_by_size(tmp_path: Path) -> None:
    events = [
        asked("allreduce", 0, [70]),
        asked("allreduce", 1, [10]),
        ran("all_reduce", 5, 9, 10, tid=RUNLOOP + 1),
        ran("all_reduce", 6, 30, 70),
    ]
    c = rank_of(tmp_path, events, **world(2)).collectives
    assert c.in_bytes.tolist() == [40, 280]
    assert c.issue_ns.tolist() == [1000, 0]


def test_operator_that_never_ran_is_counted(tmp_path: Path) -> None:
    trace = RankTrace(0, world_size=2, backend="gloo")
    trace.step(0, 0, 1000)
    trace.gloo("allreduce", at=10, start=20, end=40)
    trace.ran("c10d::allreduce_", 900, 905)
    run = built_run(tmp_path, [trace])
    assert run.ranks[0].collectives.unanswered == 1
    assert any("1 collectives called but not executed within the trace" in line for line in run.warnings)


def test_sends_and_receives_meet_through_their_peers(tmp_path: Path) -> None:
    for rank, op in ((4, "send"), (6, "recv")):
        trace = RankTrace(rank, world_size=8, backend="gloo", groups={"7": (4, 6)})
        trace.step(0, 0, 1000)
        other = "1" if op == "send" else "0"  # counted in the group
        for k in range(3):
            call = f"c10d::{op}" + ("_" if op == "recv" else "")
            shape: dict[str, Any] = {
                "Input Dims": [[[100]]],
                "Input type": ["TensorList"],
                "Concrete Inputs": ["", "", other, "0"],
            }
            trace.ran(call, 100 * k, 100 * k + 5, **shape)
            late = 20 if op == "send" else 0
            own = {"Input Dims": [[100]], "Input type": ["float"]}
            trace.annotation(f"gloo:{op}", 100 * k + 10 + late, 100 * k + 60, thread=MAIN, **own)
        trace.write(tmp_path)
    run = load(tmp_path, cache=False)
    assert run.ranks[0].collectives.messages.peer.tolist() == [6, 6, 6]
    assert run.ranks[1].collectives.messages.peer.tolist() == [4, 4, 4]
    shared = aligned(run)
    assert len(shared.matches) == 3
    assert shared.matches.size_bytes.tolist() == [400] * 3
    assert shared.wait_ns[1].tolist() == [20_000] * 3
