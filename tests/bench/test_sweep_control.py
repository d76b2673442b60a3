"""Control of a sweep whose processes are played: what it says when they end early, and what it keeps."""

from pathlib import Path
from typing import Any

import pytest

from stepscope.bench import sweep_control as sessions
from stepscope.bench.launch import LaunchResult
from stepscope.bench.sweep_control import Method, fitting_sizes, run_sweep
from stepscope.bench.sweeps import Sweep, Tolerance, Variant
from stepscope.errors import UsageError

SPEC = {"name": "gpt", "batch_size": 4, "precision": "fp32", "options": {}}
LEFT = "not finished after 1 s; raise --limit-s or ask for fewer steps"


def sample(variant: str, run: int = 0, **changes: Any) -> dict[str, Any]:
    """Return the record of a measurement."""
    return {
        "what": "samples", "variant": variant, "run": run, "step_ms": [1.0, 1.1], "warmup_ms": [2.0],
        "losses": [3.0, 2.9], "memory_allocated_gb": [2.9, 2.9], "peak_memory_allocated_gb": 2.9,
        "peak_memory_reserved_gb": 14.2, "peak_host_bytes": None, "samples_per_step": 4, "tokens_per_step": 32,
        "flops_per_step": 10, "reference": None,
        "check": {"losses": [3.0], "sketch": [1.0 + run], "first_step_ms": 5.0}, **changes,
    }  # fmt: skip


def ended(*records: dict[str, Any], code: int | None = 0, message: str | None = None) -> LaunchResult:
    return LaunchResult(exit_codes=(code,), records=(list(records),), message=message, interrupted=False, took_s=1.0)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[LaunchResult]:
    """Return the list of what the next processes will have done."""
    results: list[LaunchResult] = []

    def play(plan: dict[str, Any], *, on_record: Any, **_: Any) -> LaunchResult:
        result = results.pop(0)
        for record in result.records[0]:
            if on_record:
                on_record(record)
        return result

    monkeypatch.setattr(sessions, "launch", play)
    return results


def sweep(*variants: Variant, fresh: bool = True) -> Sweep:
    return Sweep("trial", "?", variants, Tolerance(0, 0, ""), fresh=fresh)


def begun(variant: str, run: int = 0) -> dict[str, Any]:
    return {"what": "begin", "variant": variant, "run": run}


def test_process_that_never_begins_at_all_ends_the_sweep(played: list, tmp_path: Path) -> None:
    played += [ended(code=1, message="no torch")]
    variants = Variant("a"), Variant("b", only_on="cuda", why_only="-")
    with pytest.raises(UsageError, match="nothing could be measured: no torch"):
        run_sweep(sweep(*variants), spec=SPEC, method=Method(), out=tmp_path)


def test_size_that_was_cut_off_by_the_limit_is_not_called_too_large(played: list, tmp_path: Path) -> None:
    fitted = {"what": "probe", "batch_size": 32, "fits": True, "reason": None}
    played += [
        ended({"what": "begin", "batch_size": 32}, fitted, {"what": "begin", "batch_size": 64}, code=None, message=LEFT)
    ]
    with pytest.raises(UsageError, match=r"not finished after 60 s.*fitted until then: 32$"):
        _fitting(tmp_path)


def test_size_that_hangs_does_not_fit_for_the_reason_it_gave(played: list, tmp_path: Path) -> None:
    hung = {"what": "failed", "batch_size": 1, "reason": "not finished after 9 s"}
    played += [ended({"what": "begin", "batch_size": 1}, hung, code=3, message="rank 0 ended with exit code 3")]
    assert _fitting(tmp_path, start=1) == ({1: False}, {1: "not finished after 9 s"})


def _fitting(out: Path, *, start: int = 32) -> Any:
    return fitting_sizes(
        SPEC, start=start, most=1024, memory_limit_bytes=None, method=Method(limit_s=60, item_limit_s=9), out=out
    )


def test_other_ranks_lost_the_one_that_ran_out_of_memory(played: list, tmp_path: Path) -> None:
    lost = {"what": "failed", "variant": "b", "run": 0, "reason": "RuntimeError: Connection closed by peer"}
    full = {"what": "out_of_memory", "variant": "b", "run": 0, "reason": "OutOfMemoryError: no more"}
    first = [begun("a"), sample("a"), begun("b"), lost]
    played += [
        LaunchResult((3, 3), (first, [begun("b"), full]), "rank 0 ended with exit code 3", False, 1.0),
        LaunchResult((0, 0), ([begun("c"), sample("c")], []), None, False, 1.0),
    ]
    found = run_sweep(
        sweep(Variant("a"), Variant("b"), Variant("c"), fresh=False), spec=SPEC, method=Method(runs=1, world_size=2),
        out=tmp_path,
    )  # fmt: skip
    assert list(found.runs) == ["a", "c"] and found.message is None
    assert found.refusals["b"]["what"] == "out_of_memory" and "no more" in found.refusals["b"]["reason"]
