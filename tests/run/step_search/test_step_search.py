"""Steps in traces and logs whose loop marks none: batches, optimizers, kernels, rounds, serving engines."""

from pathlib import Path

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines
from tests.not_none import not_none
from tests.run.traces import Event, event, rank_of

from stepscope.run.load import Run, in_rounds, kernel_period, steps_between_marks, with_derived_steps
from stepscope.run.side_files import StepLog, step_log_of
from stepscope.run.steps import serving_step

LOADER, SGD, ADAM = "enumerate(DataLoader)#_Iter.__next__", "Optimizer.step#SGD.step", "Optimizer.step#Adam.step"


def mark(name: str, start: float, end: float) -> Event:
    return event("user_annotation", name, start, end - start)


def trained(start: float, optimizer: str = SGD, operators: int = 4) -> list[Event]:
    """Return one pass of 100 us: operators, a backward node, the optimizer's step from 80 to 90."""
    ops = [event("cpu_op", "aten::mm", start + 10 + i, 0.5) for i in range(operators)]
    return [*ops, event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", start + 50, 5),
            mark(optimizer, start + 80, start + 90)]  # fmt: skip


def found(folder: Path, events: list[Event]) -> tuple[list[float], list[float]] | None:
    rank = rank_of(folder, events)
    steps = steps_between_marks(rank.trace, rank.kinds)
    return None if steps is None else ((steps[0] / 1000).tolist(), (steps[1] / 1000).tolist())


def test_batches_begin_steps_where_each_has_one_optimizer_step(tmp_path: Path) -> None:
    events = [e for i in range(3) for e in [mark(LOADER, 100.0 * i, 100 * i + 5), *trained(100.0 * i)]]
    assert found(tmp_path, events) == ([0, 100, 200], [100, 200, 290])


def test_optimizer_steps_end_steps_where_gradients_accumulate(tmp_path: Path) -> None:
    batches = [mark(LOADER, 50.0 * i, 50 * i + 5) for i in range(8)]
    events = [*batches, *(e for i in range(4) for e in trained(100.0 * i))]
    assert found(tmp_path, events) == ([90, 190, 290], [190, 290, 390])


def test_two_optimizers_in_a_row_and_two_in_turn_are_one_step(tmp_path: Path) -> None:
    in_a_row = [e for i in range(4) for e in [*trained(100.0 * i), mark(ADAM, 100 * i + 92, 100 * i + 95)]]
    assert found(tmp_path, in_a_row) == ([95, 195, 295], [195, 295, 395])
    in_turn = [e for i in range(8) for e in trained(100.0 * i, (SGD, ADAM)[i % 2], (4, 40)[i % 2])]
    assert found(tmp_path, in_turn) == ([190, 390, 590], [390, 590, 790])


def test_marks_that_do_not_recur_tell_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, trained(0)) is None
    assert found(tmp_path, [mark(LOADER, 0, 5), mark(LOADER, 10, 15)]) is None


def test_ranks_that_tell_different_numbers_of_steps_are_taken_as_windows(tmp_path: Path) -> None:
    some = rank_of(tmp_path, [e for i in range(4) for e in trained(100.0 * i)])
    more = rank_of(tmp_path, [e for i in range(5) for e in trained(100.0 * i)])
    assert [len(r.steps) for r in with_derived_steps([some, some])] == [3, 3]
    apart = with_derived_steps([some, more])
    assert [r.steps.is_window for r in apart] == [True, True]
    assert [r.steps.known for r in apart] == [0, 0]


STEP = ["embed", "norm", "gemm_a", "gemm_b", "norm", "gemm_a", "gemm_b", "head", "loss"]
LAYER = ["norm", "qkv", "scores", "soft", "out", "up", "down"]


def launched(names: list[str], gap_every: int = 0) -> list[Event]:
    """Return the kernels, one per 10 us, each launched 5 us before it starts."""
    events = []
    for i, name in enumerate(names):
        at = 10.0 * i + (40 * (i // gap_every) if gap_every else 0)
        events.append(event("cuda_runtime", "cudaLaunchKernel", at, 2, correlation=i + 1))
        events.append(event("kernel", name, at + 5, 4, tid=7, correlation=i + 1, device=0, stream=7))
    return events


def period_of(folder: Path, names: list[str], gap_every: int = 0) -> list[float] | None:
    rank = rank_of(folder, launched(names, gap_every))
    found = kernel_period(rank.trace, rank.work)
    return None if found is None else ((found[1] - found[0]) / 1000).tolist()


def test_steps_repeat_and_begin_after_the_longest_gap(tmp_path: Path) -> None:
    assert period_of(tmp_path, STEP * 5, gap_every=len(STEP)) == [130.0] * 4
    rank = rank_of(tmp_path, launched(STEP * 5, len(STEP)))
    found = not_none(kernel_period(rank.trace, rank.work))
    assert found[0][0] == 0 and found[2] == 1.0


def test_layers_between_the_first_and_the_last_kernels_of_one_step_are_no_steps(tmp_path: Path) -> None:
    assert period_of(tmp_path, ["embed", *LAYER * 24, "final_norm", "head"]) is None
    assert period_of(tmp_path, [*LAYER * 24]) is not None, "without the edges nothing tells them apart"


def test_a_sequence_without_a_kernel_once_per_step_repeats_as_a_whole(tmp_path: Path) -> None:
    layer = ["norm", "gemm", "add"]
    assert period_of(tmp_path, ["norm", *layer * 3, "gemm"] * 4) == [110.0] * 3
    assert period_of(tmp_path, ["norm", *layer * 3, "gemm"] * 2) is None


def test_far_longer_steps_at_the_start_are_left_out(tmp_path: Path) -> None:
    events = launched(STEP * 6, len(STEP))
    cold = [{**e, "ts": e["ts"] + (0 if i < 4 else 2_000)} for i, e in enumerate(events)]
    (even,), (settled,) = with_derived_steps([rank_of(tmp_path, events)]), with_derived_steps([rank_of(tmp_path, cold)])
    assert even.steps.known == 5 and not even.steps.after_cold
    assert settled.steps.known == 4 and settled.steps.after_cold
    assert "without 1 far longer" in settled.steps.told_by
    assert (settled.steps.end_ns - settled.steps.start_ns).max() == 130_000


def test_parameters_of_one_optimizer_step_are_no_steps(tmp_path: Path) -> None:
    events = launched(["mul", "add", "addcmul", "sqrt", "div", "addcdiv"] * 9)
    end = max(e["ts"] + e["dur"] for e in events)
    (plain,) = with_derived_steps([rank_of(tmp_path, events)])
    (update,) = with_derived_steps([rank_of(tmp_path, [*events, mark(ADAM, 0, end)])])
    assert plain.steps.known == 8
    assert update.steps.is_window


def test_layers_inside_repeated_steps_do_not_shorten_the_period(tmp_path: Path) -> None:
    step = ["embed", *LAYER * 6, "final_norm", "head", "sample"]
    assert period_of(tmp_path, step * 4) == [10.0 * len(step)] * 3


def test_calls_that_hold_several_periods_are_the_steps(tmp_path: Path) -> None:
    events = launched([*"abcdef"] * 20)
    calls = [event("cpu_op", "Torch-Compiled Region: 0/0", 24 * 10.0 * n - 2, 238) for n in range(5)]
    (layers,), (steps,) = (
        [r.steps for r in with_derived_steps([rank_of(tmp_path, e)])] for e in (events, events + calls)
    )
    assert len(layers) > 15
    assert len(steps) == 5 and steps.told_by == "the calls of Torch-Compiled Region: 0/0"


def test_a_sequence_that_does_not_repeat_has_no_period(tmp_path: Path) -> None:
    assert period_of(tmp_path, [f"k{i}" for i in range(60)]) is None
    assert period_of(tmp_path, STEP * 2) is None
    assert period_of(tmp_path, [*STEP, "a", "b", "c", *STEP, "d", "e", "f", "g", *STEP, *STEP]) is None


STEPS, FIRST, LAST = 40, 21, 28
WRITES_MS, IMPROVES_MS = 80.0, 20.0


def log(*, every: int = 2, since: int = 3, until: int = STEPS, writes_ms: float = WRITES_MS) -> StepLog:
    """Return the log of a job that writes before every few steps, from the step `since` on as the recorder sees it."""
    usual = {"forward_pass": IMPROVES_MS / 2, "backward_pass": IMPROVES_MS / 2}
    writes = [since <= step < until and (step - since) % every == 0 for step in range(STEPS)]
    lines = log_lines((usual | ({"evaluation": writes_ms} if one else {}) for one in writes), window=range(FIRST, LAST))
    for step, line in enumerate(lines):
        line |= {"device_ns": None if step == 9 else line["dur_ns"] - 1, "memory": {"allocated_bytes": 1000 + step}}
    return step_log_of(lines, rank=0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return the window of steps 21 to 27: the passes are in 21, 23, 25 and 27."""
    trace = RankTrace(0)
    for n in range(FIRST, LAST):
        trace.step(n, 1000.0 * n, 1000.0 * (n + 1))
        trace.kernel("gemm", at=1000.0 * n + 10, start=1000.0 * n + 100, end=1000.0 * n + 900)
    return built_run(tmp_path, [trace])


def test_rounds_of_the_window_and_of_the_log_have_the_same_numbers(run: Run) -> None:
    said = {"unprofiled_step_ms": 55.0, "flops_per_step": 7, "tokens_per_step": 100, "warnings": ["x"], "model": "m"}
    ranks, logs, description, lines = in_rounds(run.ranks, [log()], said)
    (rank,), (joined,) = ranks, logs
    assert rank.steps.number.tolist() == [9, 10, 11]  # 21-22, 23-24, 25-26; of the next only one step was recorded
    assert ((rank.steps.end_ns - rank.steps.start_ns) == 2_000_000).all()
    assert rank.steps.recorded.number.tolist() == list(range(FIRST, LAST))
    assert rank.work.step.tolist() == [0, 0, 1, 1, 2, 2, -1]
    assert joined.step.tolist() == list(range(18)) and joined.profiled.nonzero()[0].tolist() == [9, 10, 11, 12]
    assert (joined.dur_ns == int((WRITES_MS + 2 * IMPROVES_MS) * 1e6)).all()
    assert joined.device_ns[3] < 0 and (np.delete(joined.device_ns, 3) == joined.dur_ns[0] - 2).all()
    assert joined.column("regions.forward_pass.ns").tolist() == [IMPROVES_MS * 1e6] * 18
    assert joined.column("memory.allocated_bytes")[0] == 1004
    assert description == {"unprofiled_step_ms": 120.0, "tokens_per_step": 200, "warnings": [], "model": "m"}
    assert "a round of 2 steps" in lines[0]


@pytest.mark.parametrize(
    "steps",
    [
        log(every=1),  # a step is a round
        log(every=11),  # seldom: recurs in some steps
        log(since=9),  # an evaluation that began later
        log(until=30),  # and one that ended
        log(writes_ms=1.0),
    ],
)
def test_other_jobs_keep_their_steps(run: Run, steps: StepLog) -> None:
    ranks, logs, description, lines = in_rounds(run.ranks, [steps], {"flops_per_step": 7})
    assert (ranks, logs, description, lines) == (list(run.ranks), (steps,), {"flops_per_step": 7}, [])


@pytest.mark.parametrize(
    ("name", "kind", "tokens", "decoded"),
    [
        ("execute_context_9(8155)_generation_37(37)", "mixed", 8192, 37),
        ("execute_8192_context_9(sq8155sk8430sqsq7sqsk7)_generation_37(sq37sk34489sqsq37sqsk34489)", "mixed", 8192, 37),
        ("execute_context_0(0)_generation_64(64)", "decode", 64, 64),
        ("execute_new_2_cached_0", "prefill", None, 0),
        ("execute_new_0_cached_8", "decode", 8, 8),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15360, 0),
        ("step[DECODE bs=64]", "decode", 64, 64),
        ("[Executor] _forward_step 12: 0 ctx reqs, 0 ctx tokens, 8 gen reqs", "decode", 8, 8),
        ("_forward_step 3: 2 ctx reqs, 4096 ctx tokens, 0 gen reqs", "prefill", 4096, 0),
    ],
)
def test_names_of_engines(name: str, kind: str, tokens: int | None, decoded: int) -> None:
    step = not_none(serving_step(name))
    assert (step.kind, step.tokens, step.decode_tokens) == (kind, tokens, decoded)
