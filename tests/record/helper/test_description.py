"""run.json from the facts of the ranks."""

from typing import Any

from stepscope.record.helper.writer import run_description


def facts(rank: int, **more: Any) -> dict[str, Any]:
    steps = {"count": 9, "last": 8, "before": None, "window": None, "after": None, "unprofiled": None}
    return {"rank": rank, "created_ns": 10**18 + rank, "host": f"node{rank // 2}", "files": [], "steps": steps, **more}


def test_flops_are_those_of_the_whole_job_without_recomputation() -> None:
    plain = facts(0, flops={"events": 1, "total": 290, "forward": 100})
    checkpointed = facts(1, flops={"events": 1, "total": 400, "forward": 100})
    run = run_description([plain, checkpointed], world_size=2, finished=True)
    assert run["flops_per_step"] == 290 + 300
    assert run["hardware_flops_per_step"] == 690


def test_tokens_of_one_replica_count_once() -> None:
    found = [facts(r, tokens_per_step=1000, ranks_per_replica=2) for r in range(4)]
    assert run_description(found, world_size=4, finished=True)["tokens_per_step"] == 2000
