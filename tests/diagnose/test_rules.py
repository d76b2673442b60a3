"""Each fault, planted in a simulated job, is found first, with the saving that the job without it really has.

`FAULTS` holds the job with the fault and the job without it; the difference of their simulated steps is the truth.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.analyze.build import MAIN, RankTrace, built_run
from tests.analyze.pipelines import one_f_one_b, pipeline_run
from tests.analyze.products import BF16_KERNEL, FORWARD, FP32_KERNEL, shapes
from tests.analyze.simulate import SYNC, WAIT, Op, Simulated, backward, collective, kernel, simulate
from tests.diagnose.matched import texts

from stepscope.analyze.account import account_of
from stepscope.analyze.pipeline import microbatch_saving_ns
from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import diagnose
from stepscope.run.load import Run

Job = Sequence[Sequence[Op]]

FORWARD_PASS = [kernel(400), kernel(400)]
BACKWARD_PASS = [backward(400) for _ in range(4)]
ADAM = kernel(100, name="FusedAdam", op="aten::_fused_adamw_", within="Optimizer.step#AdamW.step")
STEP = [*FORWARD_PASS, *BACKWARD_PASS, ADAM]
HOST_KEEPS_UP = [kernel(100, host_us=85)] * 20
NODE = "autograd::engine::evaluate_function"
MB = 2**20 // 4
"""elements of fp32"""


def bucket(transfer_us: float = 150, *, megabytes: float = 8) -> Op:
    """Return an all-reduce of gradients."""
    return replace(
        collective(transfer_us, elements=int(megabytes * MB)), within=f"{NODE}: torch::autograd::AccumulateGrad"
    )


def ddp(*, slow: float = 1.0, first: Sequence[Op] = (), last: Sequence[Op] = ()) -> list[Op]:
    """Return a data-parallel step whose buckets run beside backward."""
    step = [*FORWARD_PASS]
    for node in BACKWARD_PASS:
        step += [node, bucket()]
    longer = [replace(op, device_us=op.device_us * slow) if op.what == "kernel" else op for op in step]
    return [*first, *longer, WAIT, ADAM, *last]


def sent(megabytes: float) -> Op:
    """Return an all-reduce of 100 us and 50 us per MB."""
    return bucket(100 + 50 * megabytes, megabytes=megabytes)


def product(device_us: float, kind: str, name: str) -> Op:
    """Return a matrix product of 4096 x 4096 x 4096: 0.137 TFLOP."""
    size = [4096, 4096]
    return kernel(device_us, name=name, args=shapes(size, size, kind=kind))


def checkpointed(*, again: bool) -> list[Op]:
    """Return a step whose backward runs the forward products again, or does not."""
    own = kernel(400, args={**shapes([512, 512], [512, 512]), **FORWARD})
    node = f"{NODE}: MmBackward0"
    repeated = [replace(own, within=node)] * 2 if again else []
    return [own, own, *repeated, *BACKWARD_PASS, ADAM, SYNC]


@dataclass(frozen=True)
class Fault:
    """A job with one fault, the same job without it, and what has to be said."""

    faulty: Job
    fixed: Job
    ranks: tuple[int, ...] = ()
    cause: str = ""
    tolerance: float = 0.05
    """of the faulty step"""


def uneven(share: float) -> list[Op]:
    """Return a data-parallel step on a share of the usual batch."""
    rows = int(1000 * share)
    own = kernel(600 * share, args=shapes([rows, 512], [512, 512]))
    return [own, own, *(replace(own, within=f"{NODE}: MmBackward0"),) * 4, bucket(300), WAIT, ADAM]


SQUARE = shapes([8, 16, 1024, 1024])
UNFUSED = [
    kernel(700, op="aten::bmm", name="gemm", args=shapes([128, 1024, 64], [128, 64, 1024])),
    kernel(900, op="aten::_softmax", name="softmax_warp_forward", args=SQUARE),
    kernel(800, op="aten::masked_fill", name="elementwise", args=SQUARE),
    kernel(700, op="aten::bmm", name="gemm", args=shapes([128, 1024, 1024], [128, 1024, 64])),
]
FUSED = kernel(86, op="aten::_flash_attention_forward", name="flash_fwd_kernel")
"""twice 17.2 GFLOP and a fifth at 40 % of the H200's 989 TFLOP/s"""
LONG_VECTOR = [10_000_000]
ELEMENTWISE = kernel(200, op="aten::add", name="elementwise", args=shapes(LONG_VECTOR, LONG_VECTOR, kind="float"))
SCALED = replace(ELEMENTWISE, op="aten::mul", name="elementwise_mul")
SCALER = [kernel(60, host_us=60, op="aten::_amp_foreach_non_finite_check_and_unscale_", name="amp_unscale")] * 10
SLOW_HOST = [replace(op, host_us=op.host_us + 300) for op in ddp()]
PASSES = [*FORWARD_PASS, *BACKWARD_PASS]
PLAIN_ADAM = [kernel(60, host_us=60, name="mul", op="aten::mul_", within=ADAM.within)] * 40
FUSED_ADAM = [replace(ADAM, device_us=120, host_us=60)] * 8
ADAM_BY_GROUP = [replace(ADAM, device_us=10, host_us=150)] * 40
ADAM_IN_FEW_GROUPS = [replace(ADAM, device_us=50, host_us=150)] * 8
LATE_WORK = kernel(2000, host_us=1500)
AFTER = [*FORWARD_PASS, *BACKWARD_PASS, bucket(900, megabytes=32), WAIT, ADAM]
BESIDE = [*FORWARD_PASS, *(op for node in BACKWARD_PASS for op in (node, bucket(225))), WAIT, ADAM]
SIZES = (0.05, 0.1, 0.2, 0.4, 0.25, 0.3, 0.35, 0.15)
TINY = [*FORWARD_PASS, *(op for node in BACKWARD_PASS for op in (node, *(sent(mb) for mb in SIZES))), WAIT, ADAM]
LARGE = [*FORWARD_PASS, *BACKWARD_PASS[:2], sent(3.6), *BACKWARD_PASS[2:], sent(3.6), WAIT, ADAM]
MICRO = [kernel(300), backward(300), backward(300)]
SYNCED = [bucket(1200), bucket(750, megabytes=5)]

FAULTS: dict[str, Fault] = {
    "data-loading": Fault([[Op("data", 3000), *STEP, SYNC]], [[*STEP, SYNC]]),
    "host-stall": Fault([[*STEP, Op("stall", 4000), SYNC]], [[*STEP, SYNC]]),
    "allocator": Fault([[Op("alloc", 2500), *STEP, SYNC]], [[*STEP, SYNC]]),
    "host-to-device-copy": Fault([[Op("copy", device_us=2000), *STEP]], [STEP], tolerance=0.1),
    "host-to-device-copy, small ones that the host waits for": Fault(
        [[*[Op("copy", 20, device_us=4)] * 12, *HOST_KEEPS_UP]], [[kernel(4), *HOST_KEEPS_UP]], tolerance=0.1
    ),
    "host-device-sync": Fault(
        [[op for k in STEP for op in (replace(k, device_us=100, host_us=90), SYNC)]],
        [[replace(k, device_us=100, host_us=90) for k in STEP]],
        tolerance=0.1,
    ),
    "launch-overhead": Fault([[kernel(20, host_us=120)] * 200], [[kernel(20, host_us=1)] * 200]),
    "straggler": Fault([ddp(), ddp(), ddp(slow=3), ddp()], [ddp()] * 4, ranks=(2,), cause="device"),
    "straggler, host": Fault([ddp(), SLOW_HOST, ddp()], [ddp()] * 3, ranks=(1,), cause="host"),
    "straggler, data": Fault([ddp(first=[Op("data", 4000)]), ddp(), ddp()], [ddp()] * 3, ranks=(0,), cause="data"),
    "no-overlap": Fault([AFTER] * 2, [BESIDE] * 2, tolerance=0.1),
    "too-many-small-collectives": Fault([TINY] * 2, [LARGE] * 2, tolerance=0.1),
    "communication-bound": Fault(
        [[*FORWARD_PASS, *(op for node in BACKWARD_PASS for op in (node, bucket(3000))), WAIT, ADAM]] * 2,
        [[*FORWARD_PASS, *(op for node in BACKWARD_PASS for op in (node, bucket(1500))), WAIT, ADAM]] * 2,
        tolerance=0.1,
    ),
    "redundant-communication": Fault(
        [[*[*MICRO, *SYNCED] * 4, WAIT, ADAM]] * 2, [[*MICRO * 4, *SYNCED, WAIT, ADAM]] * 2, tolerance=0.1
    ),
    "precision": Fault(
        [[*[product(2800, "float", FP32_KERNEL)] * 6, ADAM]],
        [[*[product(231, "c10::BFloat16", BF16_KERNEL)] * 6, ADAM]],
        tolerance=0.1,
    ),
    "precision, one layer left in 32 bit": Fault(
        [[*[product(231, "c10::BFloat16", BF16_KERNEL)] * 11, product(1600, "float", FP32_KERNEL), ADAM]],
        [[*[product(231, "c10::BFloat16", BF16_KERNEL)] * 12, ADAM]],
        tolerance=0.05,
    ),
    "recomputation": Fault([checkpointed(again=True)], [checkpointed(again=False)]),
    "optimizer": Fault([[*PASSES, *PLAIN_ADAM, SYNC]], [[*PASSES, *FUSED_ADAM, SYNC]], tolerance=0.1),
    "optimizer, called for each group": Fault(
        [[*PASSES, *ADAM_BY_GROUP, SYNC]], [[*PASSES, *ADAM_IN_FEW_GROUPS, SYNC]], tolerance=0.05
    ),
}

FAULTS |= {
    "load-imbalance": Fault([uneven(0.6), uneven(1.4)], [uneven(1.0)] * 2, ranks=(1,), tolerance=0.1),
    "memory-bound-attention": Fault([[*STEP, *UNFUSED]], [[*STEP, FUSED]], tolerance=0.1),
    "memory-bound-kernels": Fault([[*STEP, *[ELEMENTWISE, SCALED] * 3]], [[*STEP, ELEMENTWISE]]),
    "mixed-precision-overhead": Fault([[*STEP, *SCALER, SYNC, LATE_WORK]], [[*STEP, LATE_WORK]], tolerance=0.1),
}

HEALTHY: dict[str, Job] = {
    "one rank, device busy": [STEP],
    "four ranks, buckets beside backward": [ddp()] * 4,
    "sixteen-bit products": [[*[product(231, "c10::BFloat16", BF16_KERNEL)] * 6, ADAM]],
    "loader ahead of the device": [[Op("data", 200), *STEP]],
    "one elementwise kernel again and again, no chain": [[*STEP, *[ELEMENTWISE] * 5]],
}


def findings(run: Run, *, step_ms: float) -> list[Finding]:
    return list(diagnose(account_of(run, unprofiled_ms=step_ms)).findings)


def found_in(folder: Path, job: Simulated) -> list[Finding]:
    return findings(job.aligned(folder).run, step_ms=job.period_us / 1000)


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_first_with_what_it_costs(tmp_path: Path, name: str) -> None:
    fault = FAULTS[name]
    faulty, fixed = simulate(*fault.faulty), simulate(*fault.fixed)
    found = found_in(tmp_path, faulty)
    assert found, "nothing found"
    first = found[0]
    assert first.id == name.split(",")[0]
    truth_us = faulty.period_us - fixed.period_us
    assert first.saving_ns / 1000 == pytest.approx(truth_us, abs=fault.tolerance * faulty.period_us)
    assert first.low_ns <= truth_us * 1000 <= 1.01 * first.high_ns  # at most the time that shows the fault
    assert first.ranks == fault.ranks or not fault.ranks
    assert first.cause.startswith(fault.cause)
    assert first.evidence and first.remedy and "{" not in texts(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAULTS.keys() - {"communication-bound"}))
def test_repaired_job_no_longer_has_the_finding(tmp_path: Path, name: str) -> None:
    fixed = simulate(*FAULTS[name].fixed)
    left = {f.id: f.saving_pct for f in found_in(tmp_path, fixed)}
    assert left.get(name.split(",")[0], 0.0) < 5


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_job_has_nothing_to_repair(tmp_path: Path, name: str) -> None:
    found = found_in(tmp_path, simulate(*HEALTHY[name], jitter=0.02))
    assert [f.id for f in found if f.saving_pct >= 5] == []


def test_few_micro_batches_leave_a_bubble(tmp_path: Path) -> None:
    """Four stages: 4 micro-batches against 16 of a quarter of the work each."""
    for name in ("4", "16"):
        (tmp_path / name).mkdir()
    faulty = pipeline_run(tmp_path / "4", one_f_one_b(4, 4), forward=400, backward=800)
    fixed = pipeline_run(tmp_path / "16", one_f_one_b(4, 16), forward=100, backward=200)
    step_ns = [run.ranks[0].steps.start_ns[1] - run.ranks[0].steps.start_ns[0] for run in (faulty, fixed)]
    first = findings(faulty, step_ms=step_ns[0] / 1e6)[0]
    assert first.id == "pipeline-bubble"
    assert first.saving_ns == pytest.approx(step_ns[0] - step_ns[1], abs=0.1 * step_ns[0])


@pytest.mark.parametrize("devices", [1, 4])
def test_stages_that_share_a_device_have_no_bubble_to_fill(tmp_path: Path, devices: int) -> None:
    for rank in range(4):
        line = json.dumps({"kind": "device", "index": 0, "name": "NVIDIA H200", "uuid": f"GPU-{rank % devices}"})
        (tmp_path / f"rank{rank:05}.telemetry.jsonl").write_text(line + "\n")
    account = account_of(pipeline_run(tmp_path, one_f_one_b(4, 4), forward=400, backward=800))
    view, step = account.views.pipeline, account.step
    assert view is not None and step is not None and view.devices == devices
    saving_ns = microbatch_saving_ns(view, 16, step_ns=step.step_ns)
    # filling: 3 micro-batches of 1200 us, a quarter of that with four times as many
    filled = 0.75 * 3 * 1_200_000 if devices > 1 else 0.0
    assert saving_ns == pytest.approx(filled, abs=60_000)  # less the latency of the further messages
    said = [f.saving_ns for f in diagnose(account).findings if f.id == "pipeline-bubble" and f.saving_ns > 0]
    assert said == ([pytest.approx(saving_ns, rel=0.1)] if devices > 1 else [])


def test_group_on_a_slow_link_is_named(tmp_path: Path) -> None:
    """Three pairs of ranks exchange the same bytes; the pair 2, 3 takes three times as long."""
    groups: Mapping[str, Sequence[int]] = {"a": [0, 1], "b": [2, 3], "c": [4, 5], "0": list(range(6))}
    ranks = []
    for rank in range(6):
        name = "abc"[rank // 2]
        took = 3000 if name == "b" else 1000
        r = RankTrace(rank, world_size=6, groups=groups, descriptions=dict.fromkeys("abc", "mesh_tp"))
        for n in range(6):
            at = n * 4000
            r.step(n, at, at + 4000)
            with r.op("aten::mm", at + 2, at + 10):
                r.kernel("gemm", at=at + 4, start=at + 10, end=at + 510)
            done = at + 510 + took
            r.call("cudaStreamWaitEvent", at + 12, at + 13)
            r.collective("allreduce", at=at + 16, start=at + 510, end=done, elements=MB, group=name, thread=MAIN)
            r.call("cudaStreamWaitEvent", at + 20, at + 21)
            with r.op("aten::mm", at + 22, at + 30):
                r.kernel("gemm", at=at + 24, start=done, end=done + 390)
            r.collective("allreduce", at=at + 40, start=done + 390, end=at + 3950, elements=4, thread=MAIN)
            r.call("cudaStreamSynchronize", at + 50, at + 3960)
        ranks.append(r)
    found = {f.id: f for f in findings(built_run(tmp_path, ranks), step_ms=4.0)}
    assert found["slow-link"].ranks == (2, 3)
    assert found["slow-link"].saving_ns == pytest.approx(2_000_000, rel=0.1)


def test_kernels_shorter_than_a_launch_are_a_small_batch(tmp_path: Path) -> None:
    found = {f.id: f for f in found_in(tmp_path, simulate([kernel(3, host_us=60)] * 100))}
    assert found["small-batch"].saving_ns == 0
    assert found["launch-overhead"].saving_pct > 50


def test_graphs_of_a_few_launches_between_waits_save_nothing_for_sure(tmp_path: Path) -> None:
    acts, trains = [*[kernel(20, host_us=120)] * 8, SYNC], [*[kernel(20, host_us=120)] * 80, SYNC]
    found = [found_in(tmp_path / str(k), simulate(job)) for k, job in enumerate(([*acts * 10, *trains], trains))]
    low = [next(f.low_ns for f in one if f.id == "launch-overhead") for one in found]
    assert low[0] == 0 < low[1]


def test_recurrent_layers_are_captured_without_the_compiler(tmp_path: Path) -> None:
    for k, op in enumerate(("aten::lstm", "aten::mm")):
        found = found_in(tmp_path / str(k), simulate([kernel(20, host_us=120, op=op)] * 200))
        (remedy,) = (f.remedy for f in found if f.id == "launch-overhead")
        assert ("torch.compile(model" in remedy) == (op == "aten::mm") and "make_graphed_callables" in remedy


def test_an_optimizer_without_a_fused_form_is_not_advised_to_be_fused(tmp_path: Path) -> None:
    for name, advised in (("SparseAdam", False), ("Adam", True)):
        step = [replace(op, within=f"Optimizer.step#{name}.step") for op in [kernel(30, host_us=8)] * 60]
        found = found_in(tmp_path / name, simulate([*FORWARD_PASS, *BACKWARD_PASS, *step]))
        assert ("optimizer" in [f.id for f in found]) == advised


def test_findings_survive_noise_and_clocks(tmp_path: Path) -> None:
    """Durations vary by 5 %, clocks by up to a second; the late rank and its cost stay."""
    fault = FAULTS["straggler"]
    noisy = simulate(*fault.faulty, jitter=0.05, offset_us=(0, 1e6, -3e5, 20_000))
    first = found_in(tmp_path, noisy)[0]
    assert (first.id, first.ranks) == ("straggler", (2,))
    truth_us = simulate(*fault.faulty).period_us - simulate(*fault.fixed).period_us
    assert first.saving_ns / 1000 == pytest.approx(truth_us, rel=0.1)


def test_findings_survive_shuffled_events(tmp_path: Path) -> None:
    job = simulate(*FAULTS["straggler"].faulty)
    for trace in job.traces:
        random.Random(3).shuffle(trace.events)
    whole = found_in(tmp_path / "whole", job)[0]
    assert (whole.id, whole.ranks) == ("straggler", (2,))
    job.traces.pop(0)
    assert "straggler" not in [f.id for f in found_in(tmp_path / "part", job)]


@pytest.mark.slow
@pytest.mark.parametrize("every", [2, 3, 5])
def test_rank_that_is_late_now_and_then_is_a_straggler(tmp_path: Path, every: int) -> None:
    def sometimes(step: int) -> Sequence[Op]:
        return ddp(slow=4) if step % every == 1 else ddp()

    job = simulate(ddp(), ddp(), sometimes, ddp(), steps=max(10, 4 * every))
    first = found_in(tmp_path, job)[0]
    assert (first.id, first.ranks) == ("straggler", (2,))
    truth_us = job.period_us - simulate(*[ddp()] * 4, steps=max(10, 4 * every)).period_us
    assert first.saving_ns / 1000 == pytest.approx(truth_us, rel=0.05)


def test_loader_is_blamed_for_the_time_it_takes_in_a_loop_that_synchronises(tmp_path: Path) -> None:
    """Without the synchronisation the device would hide the loader; but what it idles for is data."""
    job = simulate([Op("data", 2000), *STEP, SYNC])
    found = found_in(tmp_path, job)
    assert [f.id for f in found if f.saving_pct >= 5] == ["data-loading"]


def test_replay_far_slower_than_the_step_neither_saves_all_of_it_nor_is_trusted(tmp_path: Path) -> None:
    """The profiler slowed this job by more than its host's time: half of the step is still half of it."""
    fault = FAULTS["straggler"]
    job, step_ms = simulate(*fault.faulty), simulate(*fault.faulty).period_us / 1000
    usual = found_in(tmp_path / "usual", job)[0]
    off = findings(job.aligned(tmp_path / "off").run, step_ms=step_ms / 2)[0]
    assert off.saving_pct == pytest.approx(usual.saving_pct, abs=2)
    assert off.confidence < usual.confidence


def test_further_findings_count_what_they_still_save(tmp_path: Path) -> None:
    """A loader and a stall, one after the other: their savings add up, and together they do not exceed the step."""
    job = simulate([Op("data", 3000), *STEP, Op("stall", 4000), SYNC])
    account = account_of(job.aligned(tmp_path).run, unprofiled_ms=job.period_us / 1000)
    diagnosis = diagnose(account)
    assert [f.id for f in diagnosis.findings[:2]] == ["host-stall", "data-loading"]
    truth_us = job.period_us - simulate([*STEP, SYNC]).period_us
    assert diagnosis.combined[1][0] == ("host-stall", "data-loading")
    assert diagnosis.combined[1][1] / 1000 == pytest.approx(truth_us, rel=0.05)
