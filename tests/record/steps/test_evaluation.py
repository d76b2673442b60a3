"""Which step begins with passes without gradients where these come every few steps?"""

from stepscope.record.steps import Regions, StepTimes


def evaluated(*steps: int) -> StepTimes:
    times = StepTimes(Regions())
    for step in steps:
        times.end_evaluation(step)
        times.end_evaluation(step)  # again within the step
        times.end(times.start_ns + 1, None)
    return times


def test_the_next_of_a_routine_is_known_else_any_step_will_do() -> None:
    found = evaluated(2, 4, 6)
    assert [found.begins_round(step) for step in (6, 7, 8, 9)] == [6, 8, 8, 10]
    assert evaluated(5, 6).begins_round(7) == 7
    assert [evaluated(*steps).begins_round(17) for steps in ((), (3,), (3, 13))] == [17, 17, 17]
