"""The profile's summary: regions are means over the epochs that have them, throughput is of training alone."""

import pytest

from stepscope.bench.data_parallel.profile_job import RegionTimes
from stepscope.bench.data_parallel.profile_summary import Epoch, throughput


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


def epoch(kind: str, step_ms: float, *, recorded: bool) -> Epoch:
    return Epoch(0, kind, 0.0, 1.0, step_ms, recorded)


def test_throughput_never_includes_the_warm_up() -> None:
    warm = [epoch("warm-up", 900.0, recorded=False), epoch("warm-up", 90.0, recorded=True)]
    quiet = throughput([*warm, epoch("training", 12.0, recorded=True), epoch("training", 10.0, recorded=False)],
                       samples=8, tokens=64)  # fmt: skip
    assert (quiet.step_ms, quiet.samples_per_s, quiet.tokens_per_s) == (10.0, 800.0, 6400.0)
    watched = throughput([*warm, epoch("training", 20.0, recorded=True)], samples=8, tokens=None)
    assert (watched.step_ms, watched.samples_per_s, watched.tokens_per_s) == (20.0, 400.0, None)
    assert watched.source.startswith("while profiled")
