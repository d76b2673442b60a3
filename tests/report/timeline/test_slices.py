"""Exported timelines hold each event of the source once, as long as it was, on one clock, with its flows."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.analyze.build import RankTrace, built_run, true_ns
from tests.diagnose.late import late_run
from tests.report.trace_processor import fields, queried, why_not

from stepscope.report.perfetto import chrome_trace, perfetto_trace
from stepscope.report.timeline import FIRST_PID, Filter, Timeline, lanes, timeline_of
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.load import load

DATA = Path(__file__).parents[2] / "data"
needs_trace_processor = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")

HOSTILE = '</script>\u2028"=cmd()\x1b]52;\U0001f4a5'


def source(shared: AlignedRun) -> dict[int, list[tuple[int, int, str]]]:
    """Return the complete events of each rank: start on the shared clock, duration, name."""
    found = {}
    for i, rank in enumerate(shared.run.ranks):
        trace = rank.trace
        rows = np.flatnonzero(trace["ph"] == ord("X"))
        start = shared.clocks.shared(i, trace["ts_ns"][rows])
        names = [trace.text(n) or "?" for n in trace["name"][rows].tolist()]
        found[rank.rank] = sorted(zip(start.tolist(), trace["dur_ns"][rows].tolist(), names, strict=True))
    return found


def crossing_run(folder: Path) -> AlignedRun:
    """Return two ranks with overlapping kernels on a stream, a crossing range, zero lengths and hostile names."""
    built = []
    for rank in range(2):
        r = RankTrace(rank, world_size=2, clock_offset_us=250.123 * rank)
        r.step(3, 0, 1000)
        r.annotation(HOSTILE, 10, 60)
        r.annotation("crosses", 40, 90)
        with r.op("aten::mm", 100, 140):
            for k in range(6):  # each begins before the one before it ends
                r.kernel(f"k{k}", at=102 + 4 * k, start=200 + 10 * k, end=213 + 10 * k)
        r.ran("empty", 150, 150)
        r.ran("empty", 150, 150)
        r.kernel("follows", at=160, start=263, end=300)
        r.collective("allreduce", at=210, start=400 + 50 * rank, end=600, elements=1 << 20)
        r.collective("allreduce", at=310, start=600, end=700, elements=1 << 10)
        r.collective("allreduce", at=None, start=2, end=5)
        built.append(r)
    return aligned(built_run(folder, built))


def decoded(
    pieces: Iterable[bytes],
) -> tuple[dict[int, list[tuple[int, int, str]]], dict[int, list[str]], dict[str, Any]]:
    """Return slices by rank, the names of slices by flow, and other facts, from the bytes of a Perfetto file."""
    names: dict[int, str] = {}
    parent: dict[int, int] = {}
    rank_of: dict[int, int] = {}
    tracks: dict[int, list[list[Any]]] = {}
    open_on: dict[int, list[list[Any]]] = {}
    flows: dict[int, list[str]] = {}
    base = 0
    for number, packet in fields(b"".join(pieces)):
        assert number == 1
        got = dict(fields(packet))
        if 6 in got:
            clocks = [dict(fields(v)) for _, v in fields(got[6])]
            base = clocks[1][2] - clocks[0][2]
        for kind, entry in fields(got.get(12, b"")):
            if kind == 2:
                names[dict(fields(entry))[1]] = dict(fields(entry))[2].decode()
        if 60 in got:
            track = dict(fields(got[60]))
            if 5 in track:
                parent[track[1]] = track[5]
            else:
                rank_of[track[1]] = track[12]
        if 11 in got:
            event = list(fields(got[11]))
            one = dict(event)
            if one[9] == 1:
                began = [got[8], None, names[one[10]]]
                open_on.setdefault(one[11], []).append(began)
                tracks.setdefault(one[11], []).append(began)
                for flow in (v for n, v in event if n == 47):
                    flows.setdefault(flow, []).append(names[one[10]])
            else:
                began = open_on[one[11]].pop()
                began[1] = got[8] - began[0]
    assert not any(open_on.values())
    slices: dict[int, list[tuple[int, int, str]]] = {}
    for track_id, listed in tracks.items():
        rank = rank_of[parent.get(track_id, track_id)]
        slices.setdefault(rank, []).extend((base + start, dur, name) for start, dur, name in listed)
    return {r: sorted(s) for r, s in slices.items()}, flows, {"ranks": set(rank_of.values())}


def from_json(pieces: Iterable[bytes]) -> tuple[dict[int, list[tuple[int, int, str]]], list[dict[str, Any]]]:
    document = json.loads(b"".join(pieces))
    slices: dict[int, list[tuple[int, int, str]]] = {}
    base = document["baseTimeNanoseconds"]
    for e in document["traceEvents"]:
        if e["ph"] == "X":
            start, dur = (round(e[key] * 1000) for key in ("ts", "dur"))
            slices.setdefault(e["pid"] - FIRST_PID, []).append((base + start, dur, e["name"]))
    return {r: sorted(s) for r, s in slices.items()}, document["traceEvents"]


def test_every_event_is_a_slice_of_its_length_in_both_forms(tmp_path: Path) -> None:
    shared = crossing_run(tmp_path)
    timeline = timeline_of(shared)
    assert decoded(perfetto_trace(timeline))[0] == source(shared)
    assert from_json(chrome_trace(timeline))[0] == source(shared)


@pytest.mark.parametrize("case", ["gloo-ddp", "h200-pipeline-interleaved", "h200-python-stacks"])
def test_real_traces_come_through_whole(case: str) -> None:
    shared = aligned(load(DATA / case, cache=False))
    assert decoded(perfetto_trace(timeline_of(shared)))[0] == source(shared)


def test_matched_collectives_share_one_flow_per_rank(tmp_path: Path) -> None:
    timeline = timeline_of(crossing_run(tmp_path))
    _, flows, _ = decoded(perfetto_trace(timeline))
    assert len(flows) == 2 and all(len(members) == 2 for members in flows.values())  # the third has no launch
    assert timeline.num_flows == 4
    _, events = from_json(chrome_trace(timeline))
    arrows = [(e["id"], e["ph"]) for e in events if e["ph"] in "stf"]
    assert sorted(arrows) == [(1, "f"), (1, "s"), (2, "f"), (2, "s")]


def test_ranks_are_on_one_clock(tmp_path: Path) -> None:
    slices, _, _ = decoded(perfetto_trace(timeline_of(aligned(late_run(tmp_path)))))
    ends = [max(start + dur for start, dur, name in slices[rank] if "AllReduce" in name) for rank in slices]
    assert max(ends) - min(ends) < 2_000  # the clocks are up to 411 us apart
    assert abs(min(start for start, _, _ in slices[0]) - true_ns(0)) < 1_000_000


def test_slices_that_cross_get_lanes_of_their_own() -> None:
    start = np.array([0, 5, 9, 14, 20, 20])
    end = np.array([7, 11, 16, 18, 30, 20])
    assert lanes(start, end) == [[0, -1, 2, -3, 4, 5, -6, -5], [1, -2, 3, -4]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> AlignedRun:
    return aligned(late_run(tmp_path_factory.mktemp("late"), steps=5))


class TestFilter:
    def test_ranks(self, shared: AlignedRun) -> None:
        timeline = timeline_of(shared, given=Filter(ranks=frozenset({1, 3})))
        assert [r.rank for r in timeline.ranks] == [1, 3]
        assert "ranks other than 1, 3" in timeline.notes[0]

    def test_steps_hold_what_they_launched(self, shared: AlignedRun) -> None:
        slices, flows, _ = decoded(perfetto_trace(timeline_of(shared, given=Filter(steps=range(1, 3)))))
        names = [name for _, _, name in slices[0] if name.startswith("ProfilerStep")]
        assert names == ["ProfilerStep#1", "ProfilerStep#2"] and len(flows) == 2

    def test_device_ranges_go_with_the_work_beside_them(self, tmp_path: Path) -> None:
        r = RankTrace(0)
        for n in range(2):  # the device is a whole step behind the host
            r.step(n, 100 * n, 100 * n + 100)
            r.kernel(f"k{n}", at=100 * n + 10, start=100 * n + 110, end=100 * n + 190)
            r.device_annotation(f"range{n}", 100 * n + 110, 100 * n + 190)
        timeline = timeline_of(aligned(built_run(tmp_path, [r])), given=Filter(steps=range(1), gpu_only=True))
        shown = {timeline.names[n] for n in timeline.ranks[0].name.tolist()}
        assert shown == {"ProfilerStep#0", "k0", "range0"}

    def test_gpu_only_leaves_devices_steps_and_collectives(self, shared: AlignedRun) -> None:
        timeline = timeline_of(shared, given=Filter(gpu_only=True))
        assert {t.name for r in timeline.ranks for t in r.tracks} == {"steps", "stream 7", "stream 20"}
        assert timeline.num_flows == timeline_of(shared).num_flows

    def test_short_slices_go_but_collectives_stay(self, shared: AlignedRun) -> None:
        timeline = timeline_of(shared, given=Filter(min_ns=10**12))
        assert {timeline.names[n] for r in timeline.ranks for n in r.name.tolist()} >= {"ProfilerStep#0"}
        assert timeline.num_flows == timeline_of(shared).num_flows

    def test_too_many_slices_are_thinned_and_it_is_said(self, shared: AlignedRun) -> None:
        whole = timeline_of(shared, most=None)
        thin = timeline_of(shared, most=whole.num_slices // 2)
        assert thin.num_slices <= whole.num_slices // 2 and "the host's threads" in thin.notes[0]
        thinner = timeline_of(shared, most=whole.num_slices // 6)
        assert "steps outside 2:4" in thinner.notes[0] and "--max-slices 0" in thinner.notes[0]
        assert thinner.left_out[0].encode() in b"".join(perfetto_trace(thinner))
        assert json.loads(b"".join(chrome_trace(thinner)))["notes"] == list(thinner.notes)
        assert whole.num_slices == sum(map(len, source(shared).values()))


SUMS = """select extract_arg(coalesce(p.source_arg_set_id, t.source_arg_set_id), 'sibling_order_rank') + 1000,
          count(*), sum(s.dur) from slice s join track t on s.track_id = t.id left join track p on t.parent_id = p.id
          group by 1 order by 1"""
# what the viewer lists below each other, and the order it takes
ROWS = """include perfetto module viz.summary.track_event;
          select p.name, g.name, g.order_id from _track_event_tracks_ordered_groups g left join track p
          on g.parent_id = p.id order by p.name, g.order_id"""
THREAD_SUMS = """select p.pid, count(*), sum(s.dur) from slice s join thread_track t on s.track_id = t.id
          join thread using (utid) join process p using (upid) group by 1 order by 1"""
PROBLEMS = "select name, value from stats where value > 0 and severity != 'info'"
IN_FLOWS = "select count(*) from (select slice_out from flow union select slice_in from flow)"
ARROWS = "select count(*) from flow"


@pytest.mark.slow
@needs_trace_processor
@pytest.mark.parametrize("form", ["perfetto", "json"])
def test_a_real_trace_processor_reads_the_same(form: str, tmp_path: Path) -> None:
    shared = aligned(load(DATA / "h200-pipeline-interleaved", cache=False))
    timeline = timeline_of(shared)
    trace = b"".join((perfetto_trace if form == "perfetto" else chrome_trace)(timeline))
    sums, problems, members, arrows, rows = queried(
        trace, SUMS if form == "perfetto" else THREAD_SUMS, PROBLEMS, IN_FLOWS, ARROWS, ROWS
    )
    expected = [(FIRST_PID + r, len(s), sum(dur for _, dur, _ in s)) for r, s in source(shared).items()]
    assert problems == []
    assert sums == expected
    assert members == [(in_flows(timeline),)]
    if form == "perfetto":
        ranks = [(None, rank.label, i) for i, rank in enumerate(timeline.ranks, start=1)]
        below = [(r.label, t.name, i) for r in timeline.ranks for i, t in enumerate(r.tracks) if i]
        assert rows == ranks + below
    assert arrows == [(timeline.num_flows - len({f for r in timeline.ranks for v in r.flows.values() for f in v}),)]


def in_flows(timeline: Timeline) -> int:
    return sum(len(rank.flows) for rank in timeline.ranks)
