"""The sequence of kernels tells steps only where it repeats as a whole; layers of one step are no steps."""

from pathlib import Path

from tests.run.traces import Event, event, rank_of

from stepscope.run.unmarked_steps import kernel_period

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
    return None if found is None else ((found.end_ns - found.start_ns) / 1000).tolist()


def test_steps_repeat_and_begin_after_the_longest_gap(tmp_path: Path) -> None:
    assert period_of(tmp_path, STEP * 5, gap_every=len(STEP)) == [130.0] * 4
    rank = rank_of(tmp_path, launched(STEP * 5, len(STEP)))
    found = kernel_period(rank.trace, rank.work)
    assert found is not None
    assert found.start_ns[0] == 0 and found.confidence == 1.0


def test_layers_between_the_first_and_the_last_kernels_of_one_step_are_no_steps(tmp_path: Path) -> None:
    assert period_of(tmp_path, ["embed", *LAYER * 24, "final_norm", "head"]) is None
    assert period_of(tmp_path, [*LAYER * 24]) is not None, "without the edges nothing tells them apart"


def test_layers_inside_repeated_steps_do_not_shorten_the_period(tmp_path: Path) -> None:
    step = ["embed", *LAYER * 6, "final_norm", "head", "sample"]
    assert period_of(tmp_path, step * 4) == [10.0 * len(step)] * 3


def test_a_sequence_that_does_not_repeat_has_no_period(tmp_path: Path) -> None:
    assert period_of(tmp_path, [f"k{i}" for i in range(60)]) is None
    assert period_of(tmp_path, STEP * 2) is None
    assert period_of(tmp_path, [*STEP, "a", "b", "c", *STEP, "d", "e", "f", "g", *STEP, *STEP]) is None
