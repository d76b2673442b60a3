"""Pictures made of a run with a known truth: what they show is what was planted."""

from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run
from tests.not_none import not_none

from stepscope.analysis import Analysis
from stepscope.analyze.collective_costs import rank_matrix
from stepscope.analyze.kernels import distributions
from stepscope.errors import StepscopeError, UsageError
from stepscope.report import pictures
from stepscope.report.html.page_data import GROUPS, KINDS, Grid, grid_of
from stepscope.report.html.timeline_data import slices_of
from stepscope.report.step_pictures import rank_times, timeline_drawing

STEP = 20_000
STALL_US = 8_000
LATE_US = 500
SHAPES: dict[str, Any] = {"Input Dims": [[64, 32], [32, 16]]}


def ranks() -> list[RankTrace]:
    """Return two ranks; the host of rank 1 does nothing for 8 ms in every step, and rank 0 waits for it."""
    out = []
    for k in range(2):
        r = RankTrace(k, world_size=2)
        r.kernel("older", at=None, start=-100, end=0)
        for n in range(4):
            t = STEP * n
            late = (STALL_US + LATE_US) * k
            r.step(n, t - 100, t + STEP - 100)
            with r.op("aten::mm", t - 90, t - 80, **SHAPES):
                r.kernel("gemm", at=t - 88, start=t, end=t + 800)
            with r.op("aten::add_", t + 850 + late, t + 860 + late):
                r.kernel("add", at=t + 855 + late, start=t + 900 + late, end=t + 1_000 + late)
            r.collective("allreduce", at=t + 900 + late, start=t + 1_000 + late, end=t + 12_000, elements=1 << 20)
        out.append(r)
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return Analysis(built_run(tmp_path_factory.mktemp("run"), ranks()))


def test_idle_time_is_named_by_what_the_host_did(run):
    slices = not_none(slices_of(run.account, grid_of(run.account)))
    idle = [i for i in np.flatnonzero(slices.kind == KINDS.index("idle")) if slices.dur_ns[i] > 5e6]
    mine = [i for i in idle if slices.ranks[slices.rank[i]] == 1]
    assert mine
    assert any(slices.names[slices.name[i]].startswith("host stalled: ") for i in mine)


def test_a_kernel_knows_its_launch(run):
    slices = not_none(slices_of(run.account, grid_of(run.account)))
    at = next(i for i in range(len(slices)) if slices.names[slices.name[i]] == "add")
    launch = slices.launches[slices.launch[at]]
    assert launch.operator == "aten::add_"
    assert slices.delay_ns[at] == 45_000
    gemm = next(i for i in range(len(slices)) if slices.names[slices.name[i]] == "gemm")
    assert slices.launches[slices.launch[gemm]].shapes == "[[64, 32], [32, 16]]"


def test_rank_matrix_says_who_waits_for_whom(run):
    found = not_none(rank_matrix(run.account.shared))
    assert found.waited_ns[1, 0] == 0
    # clocks are aligned by the collectives themselves, so the wait is known within their doubt
    assert 0.8 < found.waited_ns[0, 1] / ((STALL_US + LATE_US) * 1e3) < 1.2
    assert found.ring_bytes[0].tolist() == [0, 4 * 2**20]


def test_an_all_to_all_sends_equal_shares_to_all_others(tmp_path):
    traces = []
    for k in range(3):
        r = RankTrace(k, world_size=3)
        for n in range(2):
            t = STEP * n
            r.step(n, t - 100, t + STEP - 100)
            r.collective("all_to_allv", at=t + 100, start=t + 200, end=t + 900, elements=3 << 18)
        traces.append(r)
    found = not_none(rank_matrix(Analysis(built_run(tmp_path, traces)).account.shared))
    sent = found.ring_bytes
    assert not sent.diagonal().any()
    assert (sent[~np.eye(3, dtype=bool)] == 1 << 20).all()  # a third of 3 MiB to each


def test_durations_and_queues_are_counted(run):
    found = not_none(distributions([view.costs for view in run.account.ranks]))
    gemms = found.count[found.families.index("gemm")]
    assert gemms.sum() == 4
    assert np.flatnonzero(gemms).tolist() == [9]  # 800 µs: from 512 to 1024
    assert found.queue_share.sum() == pytest.approx(1)
    assert found.queue_share[0] > 0.5  # the host is hardly ahead


def test_pipeline_has_the_ideal_below_the_measured_schedule():
    bars = [[["F", 0, 0.0, 5.0], ["B", 0, 12.0, 20.0]], [["F", 0, 5.0, 12.0]]]
    stages = [{"stage": k, "rank": 4 + k, "measured": mine, "ideal": mine} for k, mine in enumerate(bars)]
    drawing = not_none(pictures.pipeline({"details": {"pipeline_step": stages}}))
    texts = [s["text"] for s in drawing.shapes if s["is"] == "text"]
    assert "measured, 20.0 ms" in texts and "ideal: the same order, no waiting, 20.0 ms" in texts
    assert "stage 1 · rank 5" in texts


def test_many_ranks_are_dots_with_a_line_at_the_median():
    own = np.full((40, 1), 100e6)
    own[37] = 150e6
    groups = np.zeros((len(GROUPS), 40, 1))
    groups[GROUPS.index("compute")] = own
    drawing = not_none(rank_times(Grid(tuple(range(40)), (5,), groups), {"stragglers": [{"rank": 37}], "ranks": []}))
    (median,) = [s for s in drawing.shapes if s["is"] == "path" and s["stroke"] == "text"]
    start, end = (float(point.split(",")[1]) for point in median["points"].split())
    plain = {s["y"] for s in drawing.shapes if s["is"] == "dot" and s["fill"] == "compute"}
    assert plain == {start} == {end}


def test_a_copy_on_the_device_is_not_called_one_between_host_and_device(tmp_path):
    traces = ranks()
    for n in range(4):
        traces[0].copy("DtoD (Device -> Device)", at=STEP * n - 70, start=STEP * n + 820, end=STEP * n + 860)
    found = Analysis(built_run(tmp_path, traces))
    slices = not_none(slices_of(found.account, grid_of(found.account)))
    legend = dict(timeline_drawing(slices).legend)
    assert legend["copy"] == "copies"
    assert all(row["ms_per_step"] == 0 for row in found.document["step"]["budget"] if row["part"] == "copy")


def test_every_plot_is_svg_or_says_what_is_missing(run):
    names = [name for name in dir(run) if name.startswith("plot_")]
    assert len(names) >= 15
    drawn = set()
    for name in names:
        try:
            ElementTree.fromstring(getattr(run, name)()._repr_svg_())
            drawn.add(name)
        except StepscopeError as error:
            assert str(error).startswith("nothing to plot: ")
    assert {"plot_timeline", "plot_steps", "plot_budget", "plot_what_if", "plot_queue", "plot_waiting"} <= drawn
    with pytest.raises(UsageError, match="step 77 was not recorded"):
        run.plot_timeline(step=77)
