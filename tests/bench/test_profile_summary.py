"""Regions of the profile's summary are means over the epochs that have them."""

import pytest

from stepscope.bench.data_parallel.profile_job import RegionTimes


def test_clipping_of_the_warm_up_is_not_spread_over_all_epochs() -> None:
    times = RegionTimes()
    times.seconds = {"clipping": {0: 0.002, 1: 0.004}, "forward": {0: 0.001, 1: 0.001, 2: 0.001, 3: 0.001}}
    assert times.mean_ms() == pytest.approx({"clipping": 3.0, "forward": 1.0})


def test_micro_batches_of_an_epoch_are_added() -> None:
    times = RegionTimes()
    for times.epoch in range(3):
        for _ in range(2):
            with times.mark("forward"):
                pass
    assert sorted(times.seconds["forward"]) == [0, 1, 2]
