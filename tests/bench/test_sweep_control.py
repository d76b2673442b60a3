"""Control of a sweep whose processes are played: what it says when they end early, and what it keeps."""

from pathlib import Path
from typing import Any

import pytest

from stepscope.bench import sweep_control as sessions
from stepscope.bench.launch import LauncherPlace, LaunchResult
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


def test_message_names_the_limit_of_the_sweep_not_what_was_left_of_it(played: list, tmp_path: Path) -> None:
    played += [ended(begun("a"), sample("a")), ended(begun("b"), code=None, message=LEFT)]
    found = run_sweep(sweep(Variant("a"), Variant("b")), spec=SPEC, method=Method(runs=2, limit_s=90), out=tmp_path)
    assert found.message == "not finished after 90 s; raise --limit-s or ask for fewer steps"
    assert list(found.runs) == ["a"] and not found.refusals


def test_process_that_never_begins_at_all_ends_the_sweep(played: list, tmp_path: Path) -> None:
    played += [ended(code=1, message="no torch")]
    variants = Variant("a"), Variant("b", only_on="cuda", why_only="-")
    with pytest.raises(UsageError, match="nothing could be measured: no torch"):
        run_sweep(sweep(*variants), spec=SPEC, method=Method(), out=tmp_path)


def test_variants_of_another_device_need_no_process(played: list, tmp_path: Path) -> None:
    said: list[tuple[int, int]] = []
    played += [ended(begun("a"), sample("a"))]
    found = run_sweep(
        sweep(Variant("a"), Variant("graph", only_on="cuda", why_only="graphs are CUDA's")), spec=SPEC,
        method=Method(runs=1), out=tmp_path, progress=lambda done, total, name: said.append((done, total)),
    )  # fmt: skip
    assert found.refusals["graph"]["reason"] == "graphs are CUDA's; this is cpu" and found.message is None
    assert said == [(0, 1), (1, 1)]


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


def test_ranks_of_a_launcher_are_told_the_end_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[tuple[int, Any]] = []

    def play(plan: dict[str, Any], *, session: int, on_record: Any, **_: Any) -> LaunchResult:
        plans.append((session, plan["settings"]["items"]))
        if on_record:
            on_record(begun("a"))
        return ended(begun("a"), code=1 if session == 0 else 0, message="gone" if session == 0 else None)

    monkeypatch.setattr(sessions, "launch", play)
    launched = LauncherPlace("torchrun", 0, 2, {})
    found = run_sweep(
        sweep(Variant("a"), fresh=False), spec=SPEC, method=Method(runs=1, world_size=2), out=tmp_path,
        sessions=sessions.Sessions(launched),
    )  # fmt: skip
    assert found.refusals["a"]["reason"] == "gone"
    assert [number for number, _ in plans] == [0, 1] and plans[1][1] == []


def test_a_rank_of_a_launcher_follows_until_a_session_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [ended(begun("a"), code=3, message="gave up"), ended(begun("b"))]
    monkeypatch.setattr(sessions, "launch", lambda *_, **__: results.pop(0))
    last = sessions.Sessions(LauncherPlace("torchrun", 1, 2, {})).follow(
        sessions.MEASURING, method=Method(), out=tmp_path
    )
    assert last.complete and not results
