"""Is a rank late, or the whole job slower than it was? What `contract.alarms` judges by, of one look at a job."""

from stepscope.analyze.live.picture import Picture
from stepscope.contract.alarms import BAD, BETWEEN, GOOD, GOOD_SLOWDOWN, REGRESSION, STRAGGLER, Key, regression_state
from stepscope.contract.late_ranks import DEFAULT_SLOWDOWN
from stepscope.units import ms


def states_of(picture: Picture) -> dict[Key, tuple[str, str]]:
    """Return for everything that has an alarm whether it is bad, good or between, and in words."""
    states: dict[Key, tuple[str, str]] = {}
    for rank in picture.ranks:
        late = rank.late
        if late is not None:
            is_bad, is_good = late.is_late(DEFAULT_SLOWDOWN), late.slowdown < GOOD_SLOWDOWN
            how = f"{ms(late.late_ns):.2f} ms late per step ({late.slowdown:.2f} x the others)"
            words = f"rank {late.rank} is {how}" if not is_good else f"rank {late.rank} keeps up again"
            states[STRAGGLER, rank.rank] = (BAD if is_bad else GOOD if is_good else BETWEEN, words)
    if picture.step_ns is not None and picture.first_step_ns:
        ratio = picture.step_ns / picture.first_step_ns
        now, then = ms(picture.step_ns), ms(picture.first_step_ns)
        words = f"steps take {now:.1f} ms, {then:.1f} ms at the start ({ratio:.2f} x)"
        states[REGRESSION, None] = (regression_state(picture.step_ns, picture.first_step_ns), words)
    return states
