"""The learning rate rises linearly, stays or decays, and ends where it was told to."""

import pytest

from stepscope.bench.config.schedule import SchedulerConfig


def rates(total: int = 10, **settings: object) -> list[float]:
    config = SchedulerConfig(**settings)  # type: ignore[arg-type]
    return [config.rate(step, peak=2.0, total_steps=total) for step in range(total + 3)]


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_warm_up_is_linear_from_zero_to_the_peak(decay: str) -> None:
    assert rates(warmup_steps=4, decay=decay)[:5] == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_constant_stays_at_the_peak() -> None:
    assert set(rates(warmup_steps=2)[2:]) == {2.0}


def test_without_warm_up_the_first_step_has_the_peak() -> None:
    assert rates(warmup_steps=0, decay="linear")[0] == 2.0


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_decay_ends_at_its_share_of_the_peak_and_stays_there(decay: str) -> None:
    found = rates(warmup_steps=2, decay=decay, final_ratio=0.25)
    assert found[2:] == sorted(found[2:], reverse=True)
    assert found[6] == pytest.approx(2.0 * (0.25 + 0.75 / 2))  # half way down, for a line and for a cosine
    assert found[10:] == pytest.approx([0.5, 0.5, 0.5])
