"""Which settings are tried follows from the job and its findings; what a job says is not trusted."""

import json
from dataclasses import replace
from pathlib import Path

from stepscope.contract.live import TRIAL
from stepscope.contract.run_folder import RUN_JSON, rank_file, steps_file
from stepscope.tune.experiment import INEXACT, Job, Loader, candidates, job_in, trial_in

LOADER = Loader(0, pin_memory=False, prefetch_factor=None, persistent_workers=False, map_style=True)
CPU = Job("cpu", cores=8, local_ranks=2, backend="gloo", has_ddp=True, loaders=(LOADER,), optimizer="AdamW", threads=1)
CUDA = replace(CPU, device="cuda", backend="nccl", convolutions=True)


def names(job: Job, findings: list[str] | None = None, **options) -> list[str]:
    return [c.name for c in candidates(job, findings or [], **options).tried]


def test_what_the_job_does_not_have_is_not_tried() -> None:
    bare = Job("cpu", cores=2, local_ranks=1, backend=None, has_ddp=False, threads=2, mimalloc=True)
    assert names(bare) == ["OMP_NUM_THREADS=1"]
    assert not [name for name in names(CPU) if "NCCL" in name or "cudnn" in name or "pin" in name]
    assert {"loader.pin_memory=True", "cudnn.benchmark=True", "NCCL_ALGO=Tree"} <= set(names(CUDA))


def test_what_changes_results_is_tried_only_where_that_is_allowed() -> None:
    choice = candidates(CUDA, [])
    assert ("precision.tf32=True", "changes results; --allow-inexact tries it") in choice.left_out
    assert not [c for c in choice.tried if c.results == INEXACT]
    assert "precision.tf32=True" in names(CUDA, inexact=True)
    assert "compile.model=True" in names(CUDA, compiled=True) and "compile.model=True" not in names(CUDA)


def test_loaders_are_tried_by_what_they_already_have() -> None:
    at_work = replace(CPU, loaders=(replace(LOADER, num_workers=2, prefetch_factor=2),), loader_starts=3)
    assert names(at_work, only=["loader"]) == [
        "loader.persistent_workers=True",
        "loader.prefetch_factor=4",
        "loader.num_workers=4",
    ]
    iterable = replace(CPU, loaders=(replace(LOADER, map_style=False),))
    assert names(iterable, only=["loader"]) == []


def test_damaged_notes_of_a_trial_are_unknown(tmp_path: Path) -> None:
    (tmp_path / RUN_JSON).write_text(json.dumps({"device": 7, "hosts": [], "environment": {"A": 1}, "backend": []}))
    text = '{"losses": [1e999, "x", 2], "parameters": {"sum": "1"}, "loaders": [3, {"num_workers": -1}], "took": [1]}'
    (tmp_path / rank_file(0, TRIAL)).write_text(text)
    job = job_in(tmp_path, cores=2)
    assert (job.device, job.local_ranks, job.backend, job.environment) == ("cpu", 1, None, {})
    assert job.loaders == (Loader(0, False, None, False, False),)
    line = {"start_ns": 1, "end_ns": 2, "dur_ns": 10**6, "device_ns": None, "profiled": False, "phase": "before"}
    lines = [{"schema": 1, "rank": 0}, *({"step": n, "regions": {}, **line} for n in range(12))]
    (tmp_path / steps_file(0)).write_text("".join(json.dumps(one) + "\n" for one in lines))
    found = trial_in(tmp_path, warmup=5)
    assert (found.step_ms, found.steps, found.losses) == (1.0, 7, (None, None, 2.0))
    assert found.parameters is None and found.took == ()
    assert "only 2 steps" in str(trial_in(tmp_path, warmup=10).failed)
    assert trial_in(None, warmup=5).failed == "no step of it was recorded"
    assert trial_in(tmp_path, warmup=5, ended="it took over 60 s and was ended").step_ms is None
