"""Sweeps: the search for sizes, the comparison of gradients, variants that fail alone, processes that end early."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from tests.limits import HANG_S

from stepscope.errors import UsageError
from stepscope.lab.bench import sessions, sweep_child as child
from stepscope.lab.bench.config import WorkloadSpec
from stepscope.lab.bench.launch import LaunchResult
from stepscope.lab.bench.sessions import Method, fitting_sizes, run_sweep
from stepscope.lab.bench.sweep_child import HostOptimizer, TrainStep
from stepscope.lab.bench.sweeps import SWEEPS, Sweep, Tolerance, Variant, largest_fitting, next_probe, sweep_named
from stepscope.lab.bench.workloads import workload

torch = pytest.importorskip("torch")

SPEC: dict[str, Any] = {"name": "gpt", "d_model": 16, "num_layers": 1, "num_heads": 2, "seq_len": 8, "vocab_size": 32,
        "batch_size": 4, "precision": "fp32", "seed": 0, "options": {}}  # fmt: skip


@given(capacity=st.integers(1, 20_000), start=st.sampled_from([1, 8, 32, 100]))
def test_search_ends_just_below_the_capacity(capacity: int, start: int) -> None:
    known: dict[int, bool] = {}
    while (size := next_probe(known, start=start)) is not None:
        assert size not in known
        known[size] = size <= capacity
    largest = largest_fitting(known)
    assert largest is not None and largest <= capacity
    assert capacity - largest <= max(largest / 8, 1)
    assert len(known) < 30


@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_has_distinct_variants_and_a_first_one_that_runs_anywhere(name: str) -> None:
    own: dict[str, Any] = {"batch-size": {"sizes": [4, 8]}, "strategy": {"world_size": 4}}
    sweep = sweep_named(name, SPEC, own.get(name, {}))
    names = [v.name for v in sweep.variants]
    assert len(set(names)) == len(names) >= 2
    assert sweep.variants[0].only_on is None
    assert all(v.why_only for v in sweep.variants if v.only_on)


def _work(**changes: object):
    return workload(WorkloadSpec(**{**SPEC, **changes}), "cpu")


def test_fp16_trains_with_its_scaler() -> None:
    step = TrainStep(_work(precision="fp16"), {"learning_rate": 1e-2})
    losses = [float(step.step()) for _ in range(12)]
    assert sum(losses[-4:]) < sum(losses[:4])


def test_optimizer_on_the_host_takes_the_same_steps() -> None:
    plain, moved = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
    moved.load_state_dict(plain.state_dict())
    optimizers = [
        torch.optim.AdamW(plain.parameters(), lr=0.1),
        HostOptimizer(list(moved.parameters()), learning_rate=0.1),
    ]
    for _ in range(3):
        x = torch.randn(4, 8)
        for model, optimizer in zip((plain, moved), optimizers, strict=True):
            optimizer.zero_grad()
            model(x).square().sum().backward()
            optimizer.step()
    assert torch.allclose(plain.weight, moved.weight, atol=1e-6)


FAULTY = """
import os, signal, time
import torch
from torch import nn

def make(spec, device):
    def loss(model, batch):
        how = spec.option("how", "well")
        if how == "crash": os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang": time.sleep(600)
        if how == "raise": raise RuntimeError("no such kernel\\nsecond line")
        if how == "memory": raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate")
        torch.empty(spec.batch_size, spec.option("bytes", 1), dtype=torch.uint8).fill_(1)
        return model(batch).square().mean()
    return nn.Linear(4, 4), [torch.ones(spec.batch_size, 4)], loss
"""


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.chdir(tmp_path)
    return {**SPEC, "name": "faulty:make"}


@pytest.mark.job
@pytest.mark.slow
def test_variants_that_crash_hang_or_fail_spoil_nothing(faulty: dict, tmp_path: Path) -> None:
    bad = ("crash", "hang", "raise", "memory")
    variants = [Variant("first"), *(Variant(how, options={"how": how}) for how in bad), Variant("last")]
    sweep = Sweep("trial", "?", tuple(variants), Tolerance(0, 0, ""))
    kept: list[int] = []
    found = run_sweep(
        sweep, spec=faulty, method=Method(runs=2, warmup_steps=1, steps=2, item_limit_s=15), out=tmp_path / "out",
        keep=lambda so_far: kept.append(len(so_far.runs)),
    )  # fmt: skip
    assert {name: len(runs) for name, runs in found.runs.items()} == {"first": 2, "last": 2}
    assert {name: r["what"] for name, r in found.refusals.items()} == {
        "crash": "failed", "hang": "failed", "raise": "failed", "memory": "out_of_memory"}  # fmt: skip
    assert "signal 9" in found.refusals["crash"]["reason"] and "15 s" in found.refusals["hang"]["reason"]
    assert found.refusals["raise"]["reason"] == "RuntimeError: no such kernel"
    assert found.message is None and max(kept) == 2


@pytest.mark.job
def test_ctrl_c_keeps_what_was_measured(faulty: dict, tmp_path: Path) -> None:
    def interrupt(done: int, total: int, name: str) -> None:
        if done == 1:  # pressed again and again, also while the last records are read
            raise KeyboardInterrupt

    sweep = Sweep("trial", "?", (Variant("a"), Variant("b", options={"how": "hang"})), Tolerance(0, 0, ""))
    found = run_sweep(
        sweep, spec=faulty, method=Method(runs=1, warmup_steps=1, steps=2), out=tmp_path, progress=interrupt
    )
    assert found.interrupted and list(found.runs) == ["a"] and "Ctrl-C" in (found.message or "")


@pytest.mark.job
@pytest.mark.slow
def test_largest_batch_within_a_memory_limit(faulty: dict, tmp_path: Path) -> None:
    spec = {**faulty, "options": {"bytes": 4_000_000}}
    known, reasons, _ = fitting_sizes(
        spec, start=8, most=1 << 10, memory_limit_bytes=200_000_000, method=Method(item_limit_s=HANG_S), out=tmp_path
    )
    assert 16 <= (largest_fitting(known) or 0) <= 50  # 50 would be all of it; what else torch maps counts too
    assert reasons and all(not known[size] for size in reasons)


DATA_SET = """
import torch
def build(spec, device):
    data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    return torch.nn.Linear(4, 1), data, lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
"""


@pytest.mark.job
@pytest.mark.slow
def test_no_batch_is_larger_than_the_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data_set_of_20.py").write_text(DATA_SET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    spec = {"name": "data_set_of_20:build", "seed": 0, "options": {}, "precision": "fp32"}
    known, reasons, step_ms = fitting_sizes(
        spec, start=8, most=1 << 10, memory_limit_bytes=None, method=Method(), out=tmp_path / "out"
    )
    assert largest_fitting(known) == 20 and reasons[32] == "the data set holds 20 samples"
    sizes = sweep_named("batch-size", spec, {"sizes": [8, 16], "step_ms": {8: 1.0, 16: 1000.0}}).variants
    assert step_ms[20] > 0 and [one.most_steps for one in sizes] == [10_000, 10]


def test_settings_of_the_allocator_become_variants() -> None:
    given = ("max_split_size_mb:128,garbage_collection_threshold:0.6", "MALLOC_ARENA_MAX=1")
    device, host = sweep_named("allocator", SPEC, {"settings": given}).variants[-2:]
    assert device.name == given[0] and device.only_on == "cuda"
    assert device.env["PYTORCH_ALLOC_CONF"] == device.env["PYTORCH_CUDA_ALLOC_CONF"] == given[0]
    assert dict(host.env) == {"MALLOC_ARENA_MAX": "1"} and host.only_on is None
    for text in ("", "max_split_size_mb", "a b:1", "max_split_size_mb:64", "x=1", "A=\0"):
        with pytest.raises(UsageError, match="--setting"):
            sweep_named("allocator", SPEC, {"settings": (text,)})


@pytest.mark.parametrize(
    "said",
    [
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to",
        "[enforce fail at alloc_cpu.cpp:113] data. DefaultCPUAllocator: not enough memory: you tried to allocate",
    ],
)
def test_every_allocator_of_torch_that_ran_out_is_understood(said: str) -> None:
    assert child.refusal(RuntimeError(said))["what"] == "out_of_memory"


PLAYED = {"name": "gpt", "batch_size": 4, "precision": "fp32", "options": {}}
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
    return LaunchResult(exit_codes=(code,), records=(list(records),), message=message, interrupted=False)


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
        run_sweep(sweep(*variants), spec=PLAYED, method=Method(), out=tmp_path)


def test_size_that_was_cut_off_by_the_limit_is_not_called_too_large(played: list, tmp_path: Path) -> None:
    fitted = {"what": "probe", "batch_size": 32, "fits": True, "reason": None, "step_ms": 1.0}
    played += [
        ended({"what": "begin", "batch_size": 32}, fitted, {"what": "begin", "batch_size": 64}, code=None, message=LEFT)
    ]
    with pytest.raises(UsageError, match=r"not finished after 60 s.*fitted until then: 32$"):
        _fitting(tmp_path)


def test_size_that_hangs_does_not_fit_for_the_reason_it_gave(played: list, tmp_path: Path) -> None:
    hung = {"what": "failed", "batch_size": 1, "reason": "not finished after 9 s"}
    played += [ended({"what": "begin", "batch_size": 1}, hung, code=3, message="rank 0 ended with exit code 3")]
    assert _fitting(tmp_path, start=1)[:2] == ({1: False}, {1: "not finished after 9 s"})


def _fitting(out: Path, *, start: int = 32) -> Any:
    return fitting_sizes(
        PLAYED, start=start, most=1024, memory_limit_bytes=None, method=Method(limit_s=60, item_limit_s=9), out=out
    )


def test_other_ranks_lost_the_one_that_ran_out_of_memory(played: list, tmp_path: Path) -> None:
    lost = {"what": "failed", "variant": "b", "run": 0, "reason": "RuntimeError: Connection closed by peer"}
    full = {"what": "out_of_memory", "variant": "b", "run": 0, "reason": "OutOfMemoryError: no more"}
    first = [begun("a"), sample("a"), begun("b"), lost]
    played += [
        LaunchResult((3, 3), (first, [begun("b"), full]), "rank 0 ended with exit code 3", False),
        LaunchResult((0, 0), ([begun("c"), sample("c")], []), None, False),
    ]
    found = run_sweep(
        sweep(Variant("a"), Variant("b"), Variant("c"), fresh=False), spec=PLAYED, method=Method(runs=1, world_size=2),
        out=tmp_path,
    )  # fmt: skip
    assert list(found.runs) == ["a", "c"] and found.message is None
    assert found.refusals["b"]["what"] == "out_of_memory" and "no more" in found.refusals["b"]["reason"]
