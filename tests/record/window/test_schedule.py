import itertools

from stepscope.contract.step_line import AFTER, BEFORE, WINDOW
from stepscope.record.config import RecordConfig
from stepscope.record.window.schedule import census_step, frame_step, next_busy_step, phase_of

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


def test_after_the_last_window_nothing_is_left_to_do():
    config = RecordConfig(wait=8, warmup=2, active=5)
    assert next_busy_step(15, config, also=ALSO) == 15
    assert next_busy_step(16, config, also=ALSO) is None


def test_no_profiler_runs_before_a_window():
    for wait, warmup, active, repeat in itertools.product((0, 1, 3, 8), (0, 2), (1, 4), (1, 3)):
        config = RecordConfig(wait=wait, warmup=warmup, active=active, repeat=repeat)
        census = census_step(config)
        assert census is not None
        assert phase_of(census, config) == (AFTER, repeat - 1)
        assert phase_of(census - 1, config)[0] == WINDOW


def test_step_with_frames_follows_the_census():
    config = RecordConfig(wait=8, warmup=2, active=5)
    assert (census_step(config), frame_step(config)) == (15, 16)
    assert frame_step(RecordConfig(wait=8, warmup=2, active=5, count_flops=False)) == 16
    assert frame_step(RecordConfig(owners=False)) is None
    assert frame_step(RecordConfig(light=True)) is None
    assert frame_step(RecordConfig(tool="cuda")) is None
