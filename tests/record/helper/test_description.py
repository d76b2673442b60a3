"""run.json from the facts of the ranks."""

from typing import Any

from stepscope.record.helper.writer import run_description


def facts(rank: int, **more: Any) -> dict[str, Any]:
    steps = {"count": 9, "last": 8, "before": None, "window": None, "after": None, "unprofiled": None}
    return {"rank": rank, "created_ns": 10**18 + rank, "host": f"node{rank // 2}", "files": [], "steps": steps, **more}


def medians(**phases: int) -> dict[str, Any]:
    known = {name: {"steps": 4, "median_ns": ns} for name, ns in phases.items()}
    return {"count": 9, "last": 8, "before": None, "window": None, "after": None, "unprofiled": None, **known}


def test_groups_of_all_ranks_appear_once() -> None:
    world = {"name": "0", "desc": "default_pg", "backend": "nccl", "ranks": [0, 1, 2, 3]}
    pairs = [{"name": f"p{i}", "desc": "mesh_tp", "backend": "nccl", "ranks": [2 * i, 2 * i + 1]} for i in (0, 1)]
    found = [facts(r, process_groups=[world, pairs[r // 2]]) for r in range(4)]
    run = run_description(found, world_size=4, finished=True)
    assert run["process_groups"] == [world, *pairs]
    assert run["hosts"] == {"node0": [0, 1], "node1": [2, 3]}


def test_flops_are_those_of_the_whole_job_without_recomputation() -> None:
    plain = facts(0, flops={"events": 1, "total": 290, "forward": 100})
    checkpointed = facts(1, flops={"events": 1, "total": 400, "forward": 100})
    run = run_description([plain, checkpointed], world_size=2, finished=True)
    assert run["flops_per_step"] == 290 + 300
    assert run["hardware_flops_per_step"] == 690


def test_number_that_not_all_ranks_know_is_unknown_with_its_reason() -> None:
    run = run_description(
        [facts(0, flops={"total": 5, "forward": 2}), facts(1, reasons={"flops_per_step": "no Kineto"})],
        world_size=2,
        finished=True,
    )
    assert run["flops_per_step"] is None and run["reasons"]["flops_per_step"] == "no Kineto"


def test_tokens_of_one_replica_count_once() -> None:
    found = [facts(r, tokens_per_step=1000, ranks_per_replica=2) for r in range(4)]
    assert run_description(found, world_size=4, finished=True)["tokens_per_step"] == 2000


def test_unprofiled_step_is_the_median_rank() -> None:
    found = [
        facts(r, steps=medians(unprofiled=ns, window=2 * ns))
        for r, ns in enumerate((9_000_000, 10_000_000, 30_000_000))
    ]
    run = run_description(found, world_size=3, finished=True)
    assert (run["unprofiled_step_ms"], run["profiled_step_ms"]) == (10.0, 20.0)


def test_missing_rank_is_named() -> None:
    assert run_description([facts(0), facts(2)], world_size=4, finished=False)["missing_ranks"] == [1, 3]


def test_no_key_of_run_json_looks_like_the_rank_of_a_trace() -> None:
    """Trace viewers take any .json with a "rank" for a trace of that rank."""
    import json

    run = run_description([facts(0, windows=[{"window": 0, "status": "dropped"}])], world_size=1, finished=True)
    assert '"rank":' not in json.dumps(run)
