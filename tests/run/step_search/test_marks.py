"""Steps between the loader's batches or the optimizer's steps, in traces whose loop marks none."""

from pathlib import Path

from tests.run.traces import Event, event, rank_of

from stepscope.run.unmarked_steps import steps_between_marks, with_derived_steps

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
