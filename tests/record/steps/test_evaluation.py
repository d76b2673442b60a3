"""Which step begins with passes without gradients where these come every few steps?"""

from stepscope.record.step_recorder import Evaluation


def evaluated(*steps: int) -> Evaluation:
    found = Evaluation()
    for step in steps:
        found.add({}, step=step, step_start_ns=0, now_ns=1)
        found.add({}, step=step, step_start_ns=0, now_ns=2)  # said again within the step
        found.end_step({})
    return found


def test_the_next_of_a_routine_is_known() -> None:
    found = evaluated(2, 4, 6)
    assert [found.next_step(step) for step in (6, 7, 8, 9)] == [6, 8, 8, 10]
    assert evaluated(5, 6).next_step(7) == 7


def test_where_there_is_no_routine_any_step_will_do() -> None:
    assert Evaluation().next_step(7) == 7
    assert evaluated(3).next_step(7) == 7
    assert evaluated(3, 13).next_step(17) == 17
