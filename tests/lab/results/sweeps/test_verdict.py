"""Verdicts, agreement and strategy advice of sweeps on results with a known truth."""

from typing import Any

import numpy as np
import pytest

from stepscope.lab.experiment import Agreement
from stepscope.lab.results.sweeps import (
    VariantResult,
    Verdict,
    agreement,
    recommendation,
    strategy_sentences,
    sweep_verdict,
)

TOLERANCE = {"gradient": 1e-3, "loss": 1e-3, "why": "rounding"}


def row(
    name: str, step_ms: float, *, noise: float = 0.005, drift: float = 0.0, samples: int = 8, seed: int = 0,
    off: float = 0.0, own: float = 0.0, memory_gb: float | None = None, reserved_gb: float | None = None,
    first_step_ms: float = 50.0, runs: int = 3, flops: float = 1e12,
) -> dict[str, Any]:  # fmt: skip
    """Return a row whose runs have a known time, noise, and a drift that all variants share in the same round.

    Its results are `off` by so much, and each run's by `own` from the one before.
    """
    random = np.random.default_rng([seed, *map(ord, name)])
    times = [
        list(step_ms * (1 + drift * i) * (1 + noise * random.standard_normal()) * (1 + noise * random.random(20)))
        for i in range(runs)
    ]
    checks = [check(off + own * i, first_step_ms=first_step_ms) for i in range(runs)]
    summary = {
        "samples_per_step": samples, "flops_per_step": flops, "peak_memory_allocated_gb": memory_gb,
        "peak_memory_reserved_gb": reserved_gb, "peak_host_memory_gb": None,
    }  # fmt: skip
    return {"name": name, "samples_ms": times, "summary": summary, "checks": checks, "reference": checks[0]}


def check(off: float, *, first_step_ms: float = 50.0) -> dict[str, Any]:
    """Return results whose gradient and losses are off by so much, relative."""
    sketch = [1.0 + 3 * off, 2.0, 2.0]  # as long as 3
    return {"losses": [3.0 * (1 + off)] * 3, "sketch": sketch, "first_step_ms": first_step_ms}


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


def test_differences_within_the_noise_are_none() -> None:
    found = verdict(row("a", 100, noise=0.03), row("b", 99, noise=0.03))
    assert found.chosen == "a" and "beyond the noise" in found.advice[0]


def test_fast_variant_with_other_results_is_out() -> None:
    found = verdict(row("exact", 100), row("wrong", 10, off=0.1), row("fine", 90))
    assert found.chosen == "fine"
    assert any("wrong is out" in line for line in found.advice)


EXACT = {"gradient": 0.0, "loss": 0.0, "why": "the same samples"}


def test_smallest_batch_that_is_as_good_as_the_best_is_chosen() -> None:
    rows = [row(str(n), ms, samples=n, noise=0.01) for n, ms in ((32, 100), (64, 110), (128, 200), (256, 401))]
    found = verdict(*rows, name="batch-size", reference="halves")
    agreement = found.variants[0].agreement
    assert found.chosen in ("128", "256") and agreement is not None and agreement.agrees
    rows = [row(str(n), ms, samples=n, noise=0.001) for n, ms in ((32, 100), (64, 200.1), (128, 400.2))]
    assert verdict(*rows, name="batch-size", reference="halves").chosen == "32"


def test_batch_size_is_only_recommended_where_it_is_faster_than_the_reference() -> None:
    noisy = row("64", 100, samples=64)
    noisy["samples_ms"] = [[100.0 * scale] * 20 for scale in (0.05, 1, 20)]
    rows = [row("32", 50, samples=32), noisy, row("2048", 1600, samples=2048, noise=0.02)]
    found = verdict(*rows, name="batch-size", reference="halves")
    assert found.variants[1].change is not None and found.variants[1].change.undecided
    assert found.chosen == "2048" and "use a batch of 2048" in found.advice[0]
    found = verdict(*rows[:2], name="batch-size", reference="halves")
    assert found.chosen == "32" and "stay at 32" in found.advice[0]


REORDERED = {"gradient": 1e-2, "loss": 1e-2, "why": "another order"}


def agreed(offs: list[float], own: list[float], *, other: float = 0.0, wide: bool = True) -> Agreement:
    """Return the agreement of runs that are off by so much with a reference whose own runs are."""
    return agreement(
        [check(off) for off in offs], check(other), repeats=[check(off) for off in own], name="first",
        tolerance=EXACT, reordered=REORDERED if wide else None,
    )  # fmt: skip


def test_distances_are_relative_and_the_largest_of_all_runs() -> None:
    found = agreed([0.0, 0.3, 0.1], [0.0, 0.0])
    assert found.gradient_error == pytest.approx(0.3) and found.loss_error == pytest.approx(0.3)
    assert found.agrees is False


def test_reference_that_differs_from_itself_asks_for_rounding_and_the_why_says_how_far() -> None:
    found = agreed([6e-4, 1e-3], [0.0, 5e-4])
    assert found.agrees is True
    assert "first differs from itself between runs by 5.0e-04 in the gradient" in found.why
    assert "another order (gradient 1.0e-02, loss 1.0e-02)" in found.why


@pytest.mark.parametrize("wide", [True, False])
def test_nothing_can_be_compared_with_a_reference_that_is_random(wide: bool) -> None:
    found = agreed([0.5], [0.0, 0.4], wide=wide)
    assert found.agrees is None and "more than rounding explains" in found.why


def test_results_that_are_not_finite_do_not_agree() -> None:
    found = agreed([float("nan")], [0.0, 0.0])
    assert (found.gradient_error, found.agrees) == (None, False)


SAME = Agreement(True, "the same", 0.0, 0.0)


def measured(name: str, step_ms: float, peak_gb: float | None, **more: Any) -> VariantResult:
    figures = {"step_ns": round(1e6 * step_ms), "peak_memory_gb": peak_gb, "agreement": SAME, **more}
    return VariantResult(name, "measured", **figures)


def runs(variants: list[VariantResult], *, spread: float = 0.005) -> dict[str, list[list[float]]]:
    """Return three runs of 30 steps around each variant's time."""
    random = np.random.default_rng(7)
    return {
        v.name: [list(v.step_ns / 1e6 * random.normal(1, spread, 30)) for _ in range(3)] for v in variants if v.step_ns
    }


def test_clearly_faster_one_is_taken_with_its_margin_over_the_simplest() -> None:
    variants = [measured("ddp", 100.0, 4.0), measured("ddp-bf16", 50.0, 3.0), measured("zero1-bf16", 55.0, 3.0)]
    found = recommendation(variants, runs(variants), limit_gb=80.0)
    assert found and (found["series"], found["against"]) == ("ddp-bf16", "ddp")
    assert found["time_over"] == pytest.approx(0.5, rel=0.02)
    assert found["reason"] == "clearly faster than ddp, the simplest that can"


def test_large_model_gets_what_fits() -> None:
    variants = [
        VariantResult("ddp", "out of memory", "OutOfMemoryError: CUDA out of memory"),
        measured("zero1", 300.0, 39.0),
        measured("zero2", 320.0, 31.0),
        measured("zero3", 400.0, 24.0),
    ]
    found = recommendation(variants, runs(variants), limit_gb=40.0)
    assert found and found["series"] == "zero2"  # ZeRO-1 runs, with 97 % of the memory
    assert found["excluded"]["ddp"].startswith("out of memory") and "95 %" in found["excluded"]["zero1"]
    assert found["reason"] == "ddp and zero1 cannot be used; the simplest that can; nothing is clearly faster"
    assert "zero1 is out: it takes 39.0 GB" in strategy_sentences(found, variants)[-1]


def test_other_results_are_never_recommended() -> None:
    other = Agreement(False, "rounded", 0.5, 0.1)
    variants = [measured("ddp", 100.0, 4.0), measured("zero3-bf16", 20.0, 2.0, agreement=other)]
    found = recommendation(variants, runs(variants), limit_gb=None)
    assert found and found["series"] == "ddp" and "results differ" in found["excluded"]["zero3-bf16"]
