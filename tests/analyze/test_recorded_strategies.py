"""Strategies of real four-rank jobs, with the names that frameworks leave and without any."""

import gzip
import json
from pathlib import Path

import pytest

from stepscope.analyze.account import ByStrategy, by_strategy
from stepscope.analyze.parallel_strategy import Strategy, strategy_of
from stepscope.analyze.rank_windows import rank_account
from stepscope.run.aligned import aligned
from stepscope.run.load import load

DATA = Path(__file__).parent.parent / "data"
_NAMES = ("PP:", "FSDP::")


def seen(folder: Path) -> tuple[Strategy, ByStrategy]:
    run = load(folder, cache=False)
    strategy = strategy_of(run)
    return strategy, by_strategy(aligned(run), strategy, [rank_account(r) for r in run.ranks])


def without_names(scenario: str, folder: Path) -> Path:
    """Return a copy of a scenario without the framework's ranges and the groups' descriptions."""
    for path in (DATA / scenario).glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [e for e in trace["traceEvents"] if not e["name"].startswith(_NAMES)]
        for event in trace["traceEvents"]:
            event["args"].pop("Process Group Description", None)
        for group in trace["distributedInfo"]["pg_config"]:
            group["pg_desc"] = "undefined"
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


@pytest.mark.parametrize("named", [True, False])
def test_interleaved_pipeline(tmp_path: Path, named: bool) -> None:
    scenario = "h200-pipeline-interleaved"
    strategy, views = seen(DATA / scenario if named else without_names(scenario, tmp_path))
    assert (strategy.name, strategy.sure) == ("pp4", "stated" if named else "pattern")
    found = views.pipeline
    assert found is not None
    assert (found.stages, found.microbatches, found.chunks) == (4, 4, 2)
    assert (found.schedule, found.marked) == ("interleaved-1f1b", named)
    assert found.textbook_pct == pytest.approx(100 * 3 / 11)
    assert 0 < found.bubble_pct < 100


@pytest.mark.parametrize("named", [True, False])
def test_sharding_with_replicas(tmp_path: Path, named: bool) -> None:
    strategy, views = seen(DATA / "h200-hsdp" if named else without_names("h200-hsdp", tmp_path))
    assert strategy.name == ("fsdp2-zero3 x replicate2" if named else "fsdp-zero3 x replicate2")
    assert strategy.dimensions[0].members == ((0, 1), (2, 3))
    assert strategy.dimensions[1].members == ((0, 2), (1, 3))
    assert views.sharding is not None and views.pipeline is None
    assert {r.traffic_of_parameters for r in views.sharding.ranks} == {3.0}
    # the replicas reduce what a shard holds: half of the parameters
    reduced = sum(use.size_bytes or 0 for use in strategy.dimensions[1].uses)
    assert reduced == pytest.approx((views.sharding.ranks[0].parameter_bytes or 0) / 2)


def test_groups_of_a_gloo_job_come_from_its_flight_recorder() -> None:
    """The average over all ranks after each step is four bytes: no dimension of its own."""
    strategy, _ = seen(DATA / "gloo-mesh")
    assert (strategy.name, strategy.sure) == ("fsdp2-zero2 x tp2", "stated")
    assert [d.kind for d in strategy.other] == ["small"]
