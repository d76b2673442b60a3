"""Verdicts of sweeps on results with a known truth."""

from typing import Any

import numpy as np
import pytest

from stepscope.analyze.sweep_gain import agreement, gain
from stepscope.analyze.sweep_verdict import Verdict, sweep_verdict

TOLERANCE = {"gradient": 1e-3, "loss": 1e-3, "why": "rounding"}


def row(
    name: str, step_ms: float, *, noise: float = 0.005, drift: float = 0.0, samples: int = 8, seed: int = 0,
    off: float = 0.0, memory_gb: float | None = None, first_step_ms: float = 50.0, runs: int = 3, flops: float = 1e12,
) -> dict[str, Any]:  # fmt: skip
    """Return a row whose runs have a known time, noise, and a drift that all variants share in the same round."""
    random = np.random.default_rng([seed, *map(ord, name)])
    times = [
        list(step_ms * (1 + drift * i) * (1 + noise * random.standard_normal()) * (1 + noise * random.random(20)))
        for i in range(runs)
    ]
    check = {"losses": [3.0 * (1 + off)] * 3, "sketch": [1.0 + off, 2.0, 2.0], "first_step_ms": first_step_ms}
    summary = {
        "samples_per_step": samples, "flops_per_step": flops, "peak_memory_allocated_gb": memory_gb,
        "peak_host_memory_gb": None,
    }  # fmt: skip
    return {"name": name, "samples_ms": times, "summary": summary, "check": check, "reference": check}


def verdict(*rows: dict[str, Any], device: str = "NVIDIA H200", refusals: dict[str, Any] | None = None,
            extra: tuple[str, ...] = (), **sweep: Any) -> Verdict:  # fmt: skip
    names = [r["name"] for r in rows] + list(extra)
    about = {
        "name": "trial", "goal": "time", "reference": "first", "tolerance": TOLERANCE, "refusals": refusals or {},
        "variants": [{"name": name, "tolerance": None} for name in names], **sweep,
    }  # fmt: skip
    environment = {"device": device, "device_memory_gb": 150.0}
    return sweep_verdict({"sweep": about, "series": list(rows), "environment": environment})


def test_faster_variant_is_recommended_with_its_interval() -> None:
    found = verdict(row("fp32", 100), row("bf16", 50), row("fp16", 60))
    assert found.chosen == "bf16"
    assert "2.0" in found.advice[0] and "[" in found.advice[0] and "fp32" in found.advice[0]


def test_variants_as_fast_as_the_best_are_named() -> None:
    found = verdict(row("slow", 100), row("best", 50, noise=1e-3), row("same", 50.01, noise=1e-3), row("late", 60))
    assert found.advice[1] == f"as fast within the noise: {'same' if found.chosen == 'best' else 'best'}"


def test_memory_of_a_graph_is_not_known() -> None:
    variants = [{"name": "a"}, {"name": "graph", "graph_memory": True}]
    found = verdict(row("a", 10, memory_gb=11.0), row("graph", 10, memory_gb=2.9), variants=variants)
    assert [v.peak_memory_gb for v in found.variants] == [11.0, None]


def test_differences_within_the_noise_are_none() -> None:
    found = verdict(row("a", 100, noise=0.03), row("b", 99, noise=0.03))
    assert found.chosen == "a" and "beyond the noise" in found.advice[0]


def test_noise_that_hides_what_matters_is_called_undecided() -> None:
    found = verdict(row("a", 100, noise=0.3), row("b", 95, noise=0.3))
    assert found.chosen == "a" and any(line.startswith("undecided for b") for line in found.advice)


def test_drift_of_the_machine_cancels_within_rounds() -> None:
    found = gain(row("b", 90, drift=0.5), row("a", 100, drift=0.5))
    assert found.low < 100 / 90 < found.high and found.high - found.low < 0.1


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        found = gain(row("b", 90, noise=0.02, seed=seed), row("a", 100, noise=0.02, seed=seed))
        inside += found.low <= 100 / 90 <= found.high
    assert inside >= 182


def test_one_run_has_an_interval_of_its_steps() -> None:
    found = gain(row("b", 50, runs=1), row("a", 100, runs=1))
    assert found.low <= 2.0 * 1.03 and found.high >= 2.0 * 0.97 and found.faster


def test_speed_is_per_sample() -> None:
    assert gain(row("64", 150, samples=64), row("32", 100, samples=32)).speedup == pytest.approx(2 / 1.5, rel=0.03)


def test_fast_variant_with_other_results_is_out() -> None:
    found = verdict(row("exact", 100), row("wrong", 10, off=0.1), row("fine", 90))
    assert found.chosen == "fine"
    assert any("wrong is out" in line for line in found.advice)


def test_variant_may_have_a_tolerance_of_its_own() -> None:
    wide = {"gradient": 0.5, "loss": 0.5, "why": "rounded inputs"}
    variants = [{"name": "exact", "tolerance": None}, {"name": "rounded", "tolerance": wide}]
    assert verdict(row("exact", 100), row("rounded", 50, off=0.1), variants=variants).chosen == "rounded"


def test_gradients_that_are_not_finite_do_not_agree() -> None:
    good = {"losses": [1.0], "sketch": [1.0, 1.0]}
    assert agreement({**good, "sketch": [float("nan"), 1.0]}, good, TOLERANCE).agrees is False
    assert agreement(good, None, TOLERANCE).agrees is None


def test_refused_variants_are_listed_with_their_reason() -> None:
    refusals = {
        "graph": {"what": "not_measured", "reason": "CUDA only"},
        "big": {"what": "out_of_memory", "reason": "-"},
    }
    found = verdict(row("eager", 10), refusals=refusals, extra=("graph", "big", "later"))
    assert [v.status for v in found.variants] == ["measured", "not measured", "out of memory", "not measured"]
    assert found.variants[1].reason == "CUDA only" and found.variants[3].reason


def test_long_first_step_is_paid_back() -> None:
    found = verdict(row("eager", 100, noise=1e-4), row("compiled", 50, noise=1e-4, first_step_ms=60_050))
    assert "paid back after 1,2" in found.advice[0]  # 60 s at 50 ms a step


def test_memory_saved_for_time_is_an_exchange() -> None:
    rows = row("none", 100, memory_gb=10), row("half", 115, memory_gb=7), row("full", 133, memory_gb=4)
    found = verdict(*rows, goal="memory")
    assert found.chosen == "none"
    assert "saves 60 %" in " ".join(found.advice) and "+33 %" in " ".join(found.advice)


def test_memory_saved_for_nothing_is_taken() -> None:
    found = verdict(row("a", 100, noise=1e-3, memory_gb=10), row("b", 100, noise=1e-3, memory_gb=5), goal="memory")
    assert found.chosen == "b"


def test_smallest_batch_that_is_as_good_as_the_best_is_chosen() -> None:
    rows = [row(str(n), ms, samples=n, noise=0.01) for n, ms in ((32, 100), (64, 110), (128, 200), (256, 401))]
    found = verdict(*rows, name="batch-size", reference="halves")
    assert found.chosen in ("128", "256") and found.variants[0].agreement.agrees
    rows = [row(str(n), ms, samples=n, noise=0.001) for n, ms in ((32, 100), (64, 200.1), (128, 400.2))]
    assert verdict(*rows, name="batch-size", reference="halves").chosen == "32"


def test_mfu_is_flops_over_time_over_peak() -> None:
    found = verdict(row("a", 100, noise=1e-6, flops=45e12))
    assert found.variants[0].mfu == pytest.approx(450 / 989, rel=0.01)


def test_unknown_chip_has_no_mfu_but_a_reason() -> None:
    found = verdict(row("a", 100), device="A processor")
    assert found.variants[0].mfu is None and "A processor" in (found.mfu_reason or "")


def test_nothing_measured_is_said() -> None:
    found = verdict(extra=("a",), refusals={"a": {"what": "failed", "reason": "no"}})
    assert found.chosen is None and found.advice == ("nothing was measured",)
