"""Traces of other people and of real four-rank jobs are read as what they are."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from tests.not_none import not_none

from stepscope.analyze.account import Account, account_of, by_strategy
from stepscope.analyze.collective_costs import rank_account
from stepscope.analyze.parallel_strategy import Strategy, strategy_of
from stepscope.analyze.phases import regions
from stepscope.contract.step_line import Region
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.records import Row
from stepscope.run.aligned import aligned
from stepscope.run.load import kernel_period, load
from stepscope.trace.table import EventKind

DATA = Path(__file__).parents[1] / "data"


def account(*path: str) -> Account:
    return account_of(load(DATA.joinpath(*path), cache=False, jobs=1))


def test_torch_1_8_has_steps_a_backward_pass_and_the_loader_to_blame() -> None:
    slow = account("foreign-torch18", "workers0.json.gz")
    assert slow.num_steps == 3
    found = regions(slow.run.ranks[0]).region
    assert (found == Region.BACKWARD).sum() > (found == Region.FORWARD).sum() > 0
    first = diagnose(slow).findings[0]
    assert first.id == "data-loading"
    fixed = account("foreign-torch18", "workers4.json.gz")
    assert slow.step is not None and fixed.step is not None
    saved_ns = slow.step.step_ns - fixed.step.step_ns
    assert first.low_ns < saved_ns < first.high_ns
    assert "data-loading" not in {f.id for f in diagnose(fixed).findings}


def test_v100_is_advised_neither_bfloat16_nor_tf32() -> None:
    slow = account("foreign-torch18", "workers0.json.gz")
    assert slow.chip.chip is not None and slow.chip.chip.name == "V100 DGX Station 32GB"
    diagnosis = diagnose(slow)
    said = str([(f.cause, f.remedy) for f in diagnosis.findings]) + str(report_json(slow, diagnosis)["guides"])
    assert "bfloat16" not in said and "TF32" not in said and "bf16" not in said


@pytest.mark.parametrize(
    ("file", "chip"), [("mi300-vf.json.gz", "MI300X"), ("sglang.json.gz", "MI300X"), ("vllm.json.gz", "MI300X")]
)
def test_amd_chips_are_known_whatever_number_their_kernels_carry(file: str, chip: str) -> None:
    found = account("foreign-amd", file)
    assert found.chip.chip is not None and found.chip.chip.name == chip
    assert "MI300X" in (found.device_name or "")
    assert int(found.run.ranks[0].work.device[0]) != 0


@pytest.mark.parametrize(
    ("file", "kind", "tokens"), [("vllm.json.gz", "mixed", 8192), ("sglang.json.gz", "prefill", 15360)]
)
def test_a_serving_engines_step_has_its_tokens_and_no_training_advice(file: str, kind: str, tokens: int) -> None:
    found = account("foreign-amd", file)
    assert found.num_steps == 1
    assert found.serving is not None and found.step is not None
    (served,) = found.serving.kinds
    assert (served.kind, served.tokens_per_step) == (kind, tokens)
    assert found.efficiency.tokens_per_s == pytest.approx(tokens * 1e9 / found.step.step_ns)
    assert not {f.id for f in diagnose(found).findings} & {"optimizer", "recomputation", "no-overlap"}


def test_the_window_of_a_trace_without_profiler_steps_stays_the_span_of_the_device() -> None:
    found = account("foreign-amd", "vllm.json.gz")
    work, window = found.run.ranks[0].work, found.ranks[0].window
    assert window is not None
    assert (window.start_ns, window.end_ns) == (work.start_ns.min(), work.end_ns.max())
    assert any("no ProfilerStep#" in w and "serving engine" in w for w in found.warnings)


def test_mtia_work_is_device_work() -> None:
    rank = account("foreign-mtia").run.ranks[0]
    assert rank.device_name == "ARTEMIS"
    kinds = set(rank.work.kind.tolist())
    assert {EventKind.KERNEL, EventKind.COPY} <= kinds
    assert (rank.kinds == EventKind.DEVICE_SYNC).any()
    assert not any("not understood" in w for w in account("foreign-mtia").warnings)


def test_launches_without_kernels_are_not_a_cpu() -> None:
    found = account("foreign-no-kernels")
    assert found.run.ranks[0].device_name == "NVIDIA A100 80GB PCIe"
    assert any("was not recorded" in w and "no kernel" in w for w in found.warnings)
    assert found.step is not None and found.step.ns("forward") == 0
    (rank,) = report_json(found, diagnose(found))["ranks"]
    assert rank["compute_ms"] is None and rank["idle_ms"] is None


def test_row_wise_sharding_is_no_tensor_parallelism() -> None:
    assert account("foreign-rowwise").strategy.name == "ddp x embedding16"


def test_the_loader_tells_steps_where_nothing_else_does() -> None:
    found = account("foreign-no-steps")
    assert found.num_steps == 6
    assert any("6 steps are found by the batches of the loader" in w for w in found.warnings)
    assert diagnose(found).findings[0].id == "data-loading"


def test_the_kernels_alone_tell_as_many_steps_but_the_last() -> None:
    marked = load(DATA / "foreign-no-steps", cache=False, jobs=1).ranks[0]
    found = not_none(kernel_period(marked.trace, marked.work))
    start_ns, end_ns, confidence = found
    assert confidence > 0.95 and len(start_ns) == len(marked.steps) - 1
    assert (end_ns[:-1] == start_ns[1:]).all()
    in_step = marked.steps.of(start_ns)
    assert np.diff(in_step).tolist() == [1] * (len(start_ns) - 1), "one begins in each step of the loader"


_NAMES = ("PP:", "FSDP::")


def seen(folder: Path) -> tuple[Strategy, Row]:
    run = load(folder, cache=False)
    strategy = strategy_of(run)
    return strategy, by_strategy(aligned(run), strategy, [rank_account(r) for r in run.ranks])


def without_names(scenario: str, folder: Path) -> Path:
    """Return a copy of a scenario without the framework's ranges and the groups' descriptions."""
    for path in (DATA / scenario).glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [e for e in trace["traceEvents"] if not e["name"].startswith(_NAMES)]
        for event in trace["traceEvents"]:
            event["args"].pop("Process Group Description", None)
        for group in trace["distributedInfo"]["pg_config"]:
            group["pg_desc"] = "undefined"
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_interleaved_pipeline(tmp_path: Path, named: bool) -> None:
    scenario = "h200-pipeline-interleaved"
    strategy, views = seen(DATA / scenario if named else without_names(scenario, tmp_path))
    assert (strategy.name, strategy.sure) == ("pp4", "stated" if named else "pattern")
    found = not_none(views.pipeline)
    assert (found.stages, found.microbatches, found.chunks) == (4, 4, 2)
    assert (found.schedule, found.marked) == ("interleaved-1f1b", named)
    assert found.textbook_pct == pytest.approx(100 * 3 / 11)
    assert 0 < found.bubble_pct < 100


@pytest.mark.parametrize("named", [True, False])
def test_sharding_with_replicas(tmp_path: Path, named: bool) -> None:
    strategy, views = seen(DATA / "h200-hsdp" if named else without_names("h200-hsdp", tmp_path))
    assert strategy.name == ("fsdp2-zero3 x replicate2" if named else "fsdp-zero3 x replicate2")
    assert strategy.dimensions[0].members == [(0, 1), (2, 3)]
    assert strategy.dimensions[1].members == [(0, 2), (1, 3)]
    assert views.sharding is not None and views.pipeline is None
    assert {r.traffic_of_parameters for r in views.sharding.ranks} == {3.0}
    # the replicas reduce what a shard holds: half of the parameters
    reduced = sum(use.size_bytes or 0 for use in strategy.dimensions[1].uses)
    assert reduced == pytest.approx((views.sharding.ranks[0].parameter_bytes or 0) / 2)


def test_groups_of_a_gloo_job_come_from_its_flight_recorder() -> None:
    """The average over all ranks after each step is four bytes: no dimension of its own."""
    strategy, _ = seen(DATA / "gloo-mesh")
    assert (strategy.name, strategy.sure) == ("fsdp2-zero2 x tp2", "stated")
    assert [d.kind for d in strategy.other] == ["small"]
