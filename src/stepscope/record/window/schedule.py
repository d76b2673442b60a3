"""Which phase a step is in: a function of the settings and the step's number alone, hence equal on all ranks.

wait = 2, warmup = 1, active = 2, repeat = 1
step   0       1       2       3       4       5      6
phase  before  before  warmup  window  window  after  after

Windows requested while the job runs are added after those of the settings.
"""

from collections.abc import Sequence

from stepscope.contract.live import WindowPlan
from stepscope.contract.step_line import AFTER, BEFORE, WARMUP, WINDOW
from stepscope.record.config import RecordConfig

# a step that no job reaches
NEVER = 1 << 62


def phase_of(step: int, config: RecordConfig, asked: Sequence[WindowPlan] = ()) -> tuple[str, int]:
    """Return the phase of a step and the number of the window it belongs to or follows, both from 0."""
    begun = [plan for plan in asked if step >= plan.first - plan.warmup]
    if begun:
        newest = max(begun, key=lambda plan: plan.window)
        return WARMUP if step < newest.first else WINDOW if step < newest.last else AFTER, newest.window
    if config.light:
        return BEFORE, 0
    cycle_steps = config.wait + config.warmup + config.active
    cycle, within = divmod(step, cycle_steps)
    if cycle >= config.repeat:
        return AFTER, config.repeat - 1
    if within >= config.wait + config.warmup:
        return WINDOW, cycle
    if within >= config.wait:
        return WARMUP, cycle
    return (AFTER, cycle - 1) if cycle else (BEFORE, 0)


def census_step(config: RecordConfig) -> int | None:
    """Return the step whose operators are counted, the first after the last window; None where none is requested.

    Never before a window: any session of the profiler slows the steps after it, and those before the window are the
    reference for all others. The first step after a window is not representative anyway.
    """
    if config.light or not config.count_flops or config.tool != "torch":
        return None
    return (config.wait + config.warmup + config.active) * config.repeat


def frame_step(config: RecordConfig) -> int | None:
    """Return the step that is watched with Python frames, the second after the last window; None where none is wanted.

    In the first one calls are counted: only where they are not too many is the next one watched.
    """
    if config.light or not config.owners or config.tool != "torch":
        return None
    return (config.wait + config.warmup + config.active) * config.repeat + 1


def free_step(config: RecordConfig) -> int:
    """Return the first step at which a requested window may begin to get ready."""
    return max(step + 2 for step in (0, census_step(config) or 0, frame_step(config) or 0)) if not config.light else 0


def next_busy_step(step: int, config: RecordConfig, *, also: int, asked: Sequence[WindowPlan] = ()) -> int | None:
    """Return the first step from `step` on before which the recorder has something to do; None where none is left.

    Steps of warm-up and window, the one after each window, the end of a trial, and `also`. In between, the phase does
    not change.
    """
    busy = [at for at in (also, config.trial_steps) if at is not None and at >= step]
    busy += [max(step, plan.first - plan.warmup) for plan in asked if step <= plan.last]
    if not config.light:
        cycle_steps = config.wait + config.warmup + config.active
        cycle, within = divmod(step, cycle_steps)
        if cycle < config.repeat:
            is_after_a_window = within == 0 and cycle > 0
            busy.append(step if is_after_a_window else max(step, cycle * cycle_steps + config.wait))
        elif step == config.repeat * cycle_steps:
            busy.append(step)
    return min(busy, default=None)


def close_look_at_memory(config: RecordConfig) -> int:
    """Return the first of the two unprofiled steps with detailed memory: early, else after the windows."""
    if config.light or config.wait >= 4:
        return 2
    return (config.wait + config.warmup + config.active) * config.repeat + 2


def why_no_window(steps: int, config: RecordConfig) -> str | None:
    """Return why a job of this length has no profiled window, and which would do; None where it has, or wants, none.

    >>> why_no_window(6, RecordConfig())
    'no trace: 6 steps were taken, and the profiled ones begin after step 10; use wait=1, warmup=1, active=4'
    """
    first = config.wait + config.warmup
    if config.light or steps > first:
        return None
    if steps == 0:
        return "no trace: no step was taken; call step() after every optimizer step"
    wait, warmup = min(1, steps - 1), min(1, max(steps - 2, 0))
    taken = "1 step was" if steps == 1 else f"{steps} steps were"
    better = f"wait={wait}, warmup={warmup}, active={steps - wait - warmup}"
    return f"no trace: {taken} taken, and the profiled ones begin after step {first}; use {better}"
