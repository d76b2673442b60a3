"""What all ranks measured as one record, and what a step on several ranks is made of."""

from typing import Any

from stepscope.bench.sweeps.choices.accumulation import sweep as accumulation
from stepscope.bench.sweeps.choices.strategy import sweep as strategies
from stepscope.bench.sweeps.rank_samples import job_samples


def rank(**changes: Any) -> dict[str, Any]:
    check = {"losses": [2.0], "sketch": [1.0], "first_step_ms": 30.0}
    return {
        "what": "samples", "step_ms": [10.0, 12.0], "warmup_ms": [20.0], "losses": [2.0, 1.0], "check": check,
        "memory_allocated_gb": None, "peak_memory_allocated_gb": 1.0, "peak_memory_reserved_gb": 2.0,
        "peak_host_bytes": None, "samples_per_step": 4, "tokens_per_step": None, "flops_per_step": 10,
        "reference": None, **changes,
    }  # fmt: skip


def test_job_has_all_samples_and_the_memory_of_the_fullest_rank() -> None:
    slow = {"losses": [4.0], "sketch": [1.0], "first_step_ms": 50.0}
    found = job_samples([rank(), rank(step_ms=[14.0, 12.0], peak_memory_allocated_gb=3.0, check=slow)])
    assert found["step_ms"] == [12.0, 12.0] and found["losses"] == [2.0, 1.0]
    assert found["samples_per_step"] == 8 and found["flops_per_step"] == 20
    assert found["tokens_per_step"] is None and found["memory_allocated_gb"] is None
    assert found["peak_memory_allocated_gb"] == 3.0 and found["peak_host_bytes"] is None
    assert found["check"] == {"losses": [3.0], "sketch": [1.0], "first_step_ms": 50.0} and found["reference"] is None


def test_strategies_come_from_simple_to_complicated_with_and_without_mixed_precision() -> None:
    two = strategies({"precision": "fp32"}, world_size=2).variants
    assert [v.name for v in two][:4] == ["ddp", "ddp-bf16", "zero1", "zero1-bf16"]
    assert [v.name for v in two if v.why_not] == ["hybrid", "hybrid-bf16"]
    assert not any(v.why_not for v in strategies({"precision": "fp32"}, world_size=4).variants)
    mixed = strategies({"precision": "bf16"}, world_size=4).variants
    assert [v.name for v in mixed] == ["ddp", "zero1", "zero2", "zero3", "hybrid"]
    assert all(v.tolerance is None and v.spec["precision"] == "bf16" for v in mixed)


def test_accumulation_on_ranks_also_measures_what_it_saves_in_communication() -> None:
    spec = {"batch_size": 4, "precision": "fp32"}
    assert [v.name for v in accumulation(spec).variants] == ["1 x 4", "2 x 2", "4 x 1"]
    more = accumulation(spec, world_size=2).variants[3:]
    assert [v.name for v in more] == ["4 x 1 each", "2 x 4", "4 x 4"]
    assert more[0].step["exchange_each"] and more[0].once == "4 x 1" and all(v.other_samples for v in more[1:])
