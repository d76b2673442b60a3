"""Calibrations: curves with a known truth, measured NCCL times; closed forms against simulated algorithms."""

import json
from pathlib import Path

import numpy as np
import pytest
from tests.lab.predict import collective_simulator as sim

from stepscope.contract.operations import bus_factor, ring_steps
from stepscope.cost.alpha_beta import fit, fit_pieces
from stepscope.errors import UsageError
from stepscope.lab.predict.calibrate import Point, calibrate, points_from_csv, points_from_nccl_tests
from stepscope.lab.predict.closed_form import Fabric, Link, fastest, ring_ns, tree_ns
from stepscope.lab.report.sheets import calibration_sheet
from stepscope.report.sheet_text import sheet_text

DATA = Path(__file__).parents[3] / "data" / "nccl_collectives"
MAIN = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = 1024.0 * 2 ** np.arange(18)


@pytest.fixture(scope="module")
def two_ranks():
    return points_from_csv(DATA / "collectives_w2.csv")


@pytest.fixture(scope="module")
def four_ranks():
    return points_from_csv(DATA / "collectives_w4_half.csv")


def errors(calibration, points):
    found = [calibration.predict(p.op, size_bytes=p.size_bytes, world_size=p.world_size) for p in points]
    error = np.array([abs(f.time_ns / p.time_ns - 1) for f, p in zip(found, points, strict=True)])
    inside = np.array([f.low_ns <= p.time_ns <= f.high_ns for f, p in zip(found, points, strict=True)])
    return error, inside, np.array([p.op in MAIN for p in points])


def test_change_of_protocol_is_found_where_it_is():
    times = np.where(SIZES < 300_000, 20_000 + 0.5 * SIZES, 20_000 + 0.5 * 262_144 + 0.1 * (SIZES - 262_144))
    pieces, left_out = fit_pieces(SIZES, times * np.random.default_rng(0).lognormal(0, 0.02, len(SIZES)))
    lines = pieces.lines()
    assert 262_144 in pieces.knot_bytes
    assert lines[0].alpha_ns == pytest.approx(20_000, rel=0.1) and lines[-1].ns_per_byte == pytest.approx(0.1, rel=0.1)
    assert np.abs(left_out.log_ratio[1:-1]).mean() < 0.05


def test_left_out_sizes_are_predicted_better_than_by_a_line(two_ranks):
    sizes = sorted({p.size_bytes for p in two_ranks})
    known = [p for p in two_ranks if p.size_bytes in sizes[::2]]
    unknown = [p for p in two_ranks if p.size_bytes in sizes[1::2]]
    error, inside, main = errors(calibrate(known), unknown)
    lines = {op: fit(*zip(*[(p.size_bytes, p.time_ns) for p in known if p.op == op], strict=True)) for op in MAIN}
    by_line = [abs(float(lines[p.op].time_ns(p.size_bytes)) / p.time_ns - 1) for p in unknown if p.op in MAIN]
    assert error[main].mean() < 0.10 < np.mean(by_line)
    assert inside.mean() >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("largest", [1 << 16, 1 << 20, 1 << 23])
def test_larger_sizes_are_never_faster_than_measured_and_less_certain(two_ranks, largest):
    known = [p for p in two_ranks if p.size_bytes <= largest]
    larger = [p for p in two_ranks if p.size_bytes > largest]
    calibration = calibrate(known)
    _, inside, _ = errors(calibration, larger)
    assert inside.mean() >= 0.85
    for op in {p.op for p in known}:
        fastest_ns = min(p.time_ns / p.size_bytes for p in known if p.op == op)
        found = [calibration.predict(op, size_bytes=largest * k, world_size=2) for k in (2, 8, 64)]
        assert all(f.time_ns >= 0.999 * fastest_ns * largest * k for f, k in zip(found, (2, 8, 64), strict=True))
        widths = [f.high_ns / f.time_ns for f in found]
        assert widths == sorted(widths) and widths[2] > 2 * widths[0]
        assert "64 times beyond the largest measured size" in found[2].how
        assert "no more than the largest measured bandwidth" in found[2].how


def test_curve_that_ends_flat_does_not_go_on_flat():
    points = [Point("all_gather", 2, size, time) for size, time in ((1_000, 6e5), (10_000, 7e5), (100_000, 7.1e5))]
    found = calibrate(points).predict("all_gather", size_bytes=100_000_000, world_size=2)
    assert found.time_ns == pytest.approx(7.1e8, rel=0.01) and found.low_ns < 1e8


@pytest.mark.slow
def test_interval_holds_most_left_out_sizes_of_four_ranks(four_ranks):
    kept, error, main = [], [], []
    for size in sorted({p.size_bytes for p in four_ranks})[1:-1:2]:
        rest = calibrate([p for p in four_ranks if p.size_bytes != size])
        e, inside, m = errors(rest, [p for p in four_ranks if p.size_bytes == size])
        kept.append(inside)
        error.append(e)
        main.append(m)
    assert np.concatenate(kept).mean() >= 0.85
    assert np.concatenate(error)[np.concatenate(main)].mean() < 0.18  # 16 times between neighbours: harder than in use


@pytest.mark.slow
def test_world_size_four_follows_from_two(two_ranks, four_ranks):
    error, inside, main = errors(calibrate(two_ranks), four_ranks)
    assert error[main].mean() < 0.15
    assert inside.mean() >= 0.85


def test_world_sizes_follow_the_ring_and_what_it_misses_goes_on():
    def ring(world, contention):
        return [
            Point(
                "all_gather", world, int(s), (30_000 + (world - 1) * (10_000 + s / world)) * contention ** (world - 2)
            )
            for s in SIZES
        ]

    alone = calibrate(ring(2, 1.0)).predict("all_gather", size_bytes=1e8, world_size=4)
    assert alone.time_ns == pytest.approx(3 * 1e8 / 4, rel=0.1)
    shared = calibrate(ring(2, 1.2) + ring(3, 1.2)).predict("all_gather", size_bytes=1e8, world_size=4)
    assert shared.time_ns == pytest.approx(3 * 1e8 / 4 * 1.2**2, rel=0.12)
    assert shared.low_ns < shared.time_ns < shared.high_ns and "world size 3" in shared.how


NCCL_TEXT = """# nccl-tests version 2.17.6 nccl-headers=22907 nccl-library=22907
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 1024 maxBytes 4096 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid  4242 on  node0 device  0 [0000:10:00] NVIDIA H100
#  Rank  1 Group  0 Pid  4243 on  node0 device  1 [0000:20:00] NVIDIA H100
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
           0             0     float    none      -1     0.11    0.00    0.00       0     0.10    0.00    0.00       0
        1024           128     float    none      -1    12.51    0.08    0.04       0    12.40    0.08    0.04       0
        2048           256     float    none      -1    1.3e+01    0.16    0.08       0    12.80    0.16    0.08     N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 0.06
"""


def test_nccl_tests_are_read_as_text_and_as_json(tmp_path):
    text, written = tmp_path / "out.txt", tmp_path / "out.json"
    text.write_text(NCCL_TEXT)
    wanted = [Point("all_gather", 2, 1024, 12_510.0), Point("all_gather", 2, 2048, 13_000.0)]
    assert points_from_nccl_tests(text) == wanted
    results = [
        {"size": 1024, "out_of_place": {"time": 12.51}, "in_place": {"time": 12.4}},
        {"size": 2048, "out_of_place": None, "in_place": {"cpu_time": 13.0}},
    ]
    config = {"nthreads": 1, "ngpus": 1, "devices": [{"rank": 0}, {"rank": 1}]}
    written.write_text(json.dumps({"args": ["./build/all_gather_perf"], "config": config, "results": results}))
    assert points_from_nccl_tests(written) == wanted


def test_a_curve_that_does_not_fit_is_called_so():
    def said(noise):
        factors = np.random.default_rng(1).lognormal(0, noise, len(SIZES))
        points = [Point("all_reduce", 2, int(s), (20_000 + 0.5 * s) * f) for s, f in zip(SIZES, factors, strict=True)]
        return sheet_text(calibration_sheet(calibrate(points)))

    assert "poor fit" not in said(0.02)
    assert "poor fit: all_reduce on 2 ranks" in said(3.0)


SIZES_ALPHA_BETA = 1024.0 * 4 ** np.arange(9)


def test_latency_and_bandwidth_come_back_from_noisy_times():
    rng = np.random.default_rng(0)
    sizes = np.repeat(SIZES_ALPHA_BETA, 5)
    times = (50_000 + 0.4 * sizes) * rng.lognormal(0, 0.1, len(sizes))
    found = fit(sizes, times)
    assert found.alpha_ns == pytest.approx(50_000, rel=0.15)
    assert found.ns_per_byte == pytest.approx(0.4, rel=0.15)


def test_one_outlier_does_not_move_the_line():
    times = 50_000 + 0.4 * SIZES_ALPHA_BETA
    times[3] *= 40
    found = fit(SIZES_ALPHA_BETA, times)
    assert found.alpha_ns == pytest.approx(50_000) and found.ns_per_byte == pytest.approx(0.4)


LINK = Link(alpha_ns=5_000, ns_per_byte=0.1)
SIZE = 960_000


def exact(found):
    return pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8])
def test_ring_all_reduce_adds_up_everything_in_the_predicted_time(p):
    rounds = sim.ring_reduce_scatter(p) + sim.ring_all_gather(p, first=1)
    held = [{b: {r} for b in range(p)} for r in range(p)]
    everyone = set(range(p))
    assert all(held_block == everyone for rank in sim.reduced(rounds, held) for held_block in rank.values())
    assert len(rounds) == ring_steps("all_reduce", p)
    assert ring_ns("all_reduce", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(rounds, SIZE / p, LINK))


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_ring_halves_and_all_to_all_take_the_predicted_time(p):
    scatter, gather = sim.ring_reduce_scatter(p), sim.ring_all_gather(p)
    held = sim.reduced(gather, [{b: {b} if b == r else set() for b in range(p)} for r in range(p)])
    assert all(rank[b] == {b} for rank in held for b in range(p))
    for op, rounds in (("reduce_scatter", scatter), ("all_gather", gather), ("all_to_all", sim.pairwise_all_to_all(p))):
        assert ring_ns(op, size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(rounds, SIZE / p, LINK))
        sent = sum(len(m[2]) for rnd in rounds for m in rnd if m[0] == 0) / p
        assert sent == exact(bus_factor(op, p))


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_trees_take_the_predicted_time(p):
    gather = sim.doubling_all_gather(p)
    held = sim.reduced(gather, [{b: {b} if b == r else set() for b in range(p)} for r in range(p)])
    assert all(rank[b] == {b} for rank in held for b in range(p))
    assert tree_ns("all_gather", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(gather, SIZE / p, LINK))
    assert tree_ns("reduce_scatter", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(gather, SIZE / p, LINK))


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_binomial_broadcast_and_bruck_take_the_predicted_time(p):
    broadcast = sim.binomial_broadcast(p)
    held = sim.reduced(broadcast, [{0: {0} if r == 0 else set()} for r in range(p)])
    assert all(rank[0] == {0} for rank in held)
    assert tree_ns("broadcast", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(broadcast, SIZE, LINK))
    bruck = sim.bruck_all_to_all(p)
    assert tree_ns("all_to_all", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(bruck, SIZE / p, LINK))


def test_small_messages_among_many_take_trees_and_large_ones_among_few_take_rings():
    flat = Fabric(LINK)
    assert fastest("all_reduce", size_bytes=1_000, ranks=1024, fabric=flat).algorithm == "tree"
    assert fastest("all_reduce", size_bytes=10**9, ranks=8, fabric=flat).algorithm == "ring"
    nodes = Fabric(Link(2_000, 1 / 400), Link(5_000, 1 / 50), 8)
    assert fastest("all_to_all", size_bytes=10_000, ranks=64, fabric=nodes).algorithm in ("tree", "hierarchical")


def test_one_rank_needs_no_time_and_nonsense_is_refused():
    assert ring_ns("all_reduce", size_bytes=SIZE, ranks=1, link=LINK) == 0
    with pytest.raises(UsageError, match="ranks have to be at least 1"):
        fastest("all_reduce", size_bytes=-1, ranks=0, fabric=Fabric(LINK))
    with pytest.raises(UsageError, match="bandwidth above 0"):
        Link(1, 0)
