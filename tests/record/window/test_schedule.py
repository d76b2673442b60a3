import itertools

from stepscope.contract.step_line import AFTER, BEFORE, WINDOW
from stepscope.record.config import RecordConfig
from stepscope.record.window.schedule import census_step, next_busy_step, phase_of

ALSO = 2


def test_between_busy_steps_nothing_is_to_be_done_and_the_phase_stays():
    for wait, warmup, active, repeat, light in itertools.product((0, 1, 3, 8), (0, 2), (1, 4), (1, 3), (False, True)):
        config = RecordConfig(wait=wait, warmup=warmup, active=active, repeat=repeat, light=light)
        for step in range(1, 60):
            busy = next_busy_step(step, config, also=ALSO)
            phase, before = phase_of(step, config)[0], phase_of(step - 1, config)[0]
            must_act = (
                phase not in (BEFORE, AFTER)
                or phase != before
                or phase_of(step, config) != phase_of(step - 1, config)
                or step == ALSO
            )
            assert (busy == step) == must_act, (config, step)
            assert busy is None or busy >= step


def test_no_profiler_runs_before_a_window():
    for wait, warmup, active, repeat in itertools.product((0, 1, 3, 8), (0, 2), (1, 4), (1, 3)):
        config = RecordConfig(wait=wait, warmup=warmup, active=active, repeat=repeat)
        census = census_step(config)
        assert census is not None
        assert phase_of(census, config) == (AFTER, repeat - 1)
        assert phase_of(census - 1, config)[0] == WINDOW
