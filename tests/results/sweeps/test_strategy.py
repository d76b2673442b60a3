"""DDP or sharded, decided from constructed measurements."""

from typing import Any

import numpy as np
import pytest

from stepscope.results.sweeps import Agreement, VariantResult, recommendation, strategy_sentences

SAME = Agreement(0.0, 0.0, True, "the same")


def measured(name: str, step_ms: float, peak_gb: float | None, **more: Any) -> VariantResult:
    figures = {"step_ns": round(1e6 * step_ms), "peak_memory_gb": peak_gb, "agreement": SAME, **more}
    return VariantResult(name, "measured", **figures)


def runs(variants: list[VariantResult], *, spread: float = 0.005) -> dict[str, list[list[float]]]:
    """Return three runs of 30 steps around each variant's time."""
    random = np.random.default_rng(7)
    return {
        v.name: [list(v.step_ns / 1e6 * random.normal(1, spread, 30)) for _ in range(3)] for v in variants if v.step_ns
    }


def test_small_model_gets_ddp() -> None:
    variants = [measured("ddp", 48.0, 4.0), measured("zero2", 50.0, 3.0), measured("zero3", 60.0, 2.0)]
    found = recommendation(variants, runs(variants), limit_gb=80.0)
    assert found and (found.series, found.against) == ("ddp", "zero2")
    assert found.time_over_high and found.time_over_high < 1 and not found.no_difference
    assert found.reason == "the simplest; nothing is clearly faster"
    assert strategy_sentences(found, variants)[-1] == "it takes 4.0 GB of 80.0 GB a rank; least: zero3 with 2.0 GB"


def test_clearly_faster_one_is_taken_with_its_margin_over_the_simplest() -> None:
    variants = [measured("ddp", 100.0, 4.0), measured("ddp-bf16", 50.0, 3.0), measured("zero1-bf16", 55.0, 3.0)]
    found = recommendation(variants, runs(variants), limit_gb=80.0)
    assert found and (found.series, found.against) == ("ddp-bf16", "ddp")
    assert found.time_over == pytest.approx(0.5, rel=0.02)
    assert found.reason == "clearly faster than ddp, the simplest that can"


def test_simpler_one_with_a_shorter_step_is_taken_though_its_runs_differ() -> None:
    variants = [measured("zero2", 773.0, 4.0), measured("zero2-bf16", 400.0, 3.0), measured("zero3-bf16", 614.0, 2.0)]
    timed = {**runs(variants), "zero2-bf16": [[300.0] * 8, [500.0] * 8]}
    found = recommendation(variants, timed, limit_gb=None)
    assert found and (found.series, found.against) == ("zero2-bf16", "zero3-bf16")
    assert "simpler than zero3-bf16 and its step is shorter" in found.reason


def test_large_model_gets_what_fits() -> None:
    variants = [
        VariantResult("ddp", "out of memory", "OutOfMemoryError: CUDA out of memory"),
        measured("zero1", 300.0, 39.0),
        measured("zero2", 320.0, 31.0),
        measured("zero3", 400.0, 24.0),
    ]
    found = recommendation(variants, runs(variants), limit_gb=40.0)
    assert found and found.series == "zero2"  # ZeRO-1 runs, with 97 % of the memory
    assert found.excluded["ddp"].startswith("out of memory") and "95 %" in found.excluded["zero1"]
    assert found.reason == "ddp and zero1 cannot be used; the simplest that can; nothing is clearly faster"
    assert "zero1 is out: it takes 39.0 GB" in strategy_sentences(found, variants)[-1]


def test_other_results_are_never_recommended() -> None:
    other = Agreement(0.5, 0.1, False, "rounded")
    variants = [measured("ddp", 100.0, 4.0), measured("zero3-bf16", 20.0, 2.0, agreement=other)]
    found = recommendation(variants, runs(variants), limit_gb=None)
    assert found and found.series == "ddp" and "results differ" in found.excluded["zero3-bf16"]
