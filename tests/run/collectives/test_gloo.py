"""Collectives of CPU ranks: what was asked for joined to when it ran (recorded runs and constructed ones)."""

from pathlib import Path
from typing import Any

from tests.analyze.build import MAIN, RankTrace, built_run
from tests.run.traces import Event, event, rank_of

from stepscope.contract.collectives import OPS
from stepscope.run.aligned import aligned
from stepscope.run.load import load

RECORDED = Path(__file__).parents[2] / "data" / "gloo-ddp"
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
    run = load(RECORDED, cache=False)
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
    assert any("1 collectives asked for whose execution is not in the trace" in line for line in run.warnings)


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
