"""Perfetto traces: the same account as the JSON of the same window; damaged and hostile ones as JSON's."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from tests.report.trace_processor import queried, why_not
from tests.trace import perfetto_files as perfetto
from tests.trace.perfetto_files import message, number, packet, text

import stepscope
from stepscope.errors import TraceError
from stepscope.trace.read import read
from stepscope.trace.table import Trace, event_kinds, labels

RUN = Path(__file__).parents[1] / "data" / "h200-hsdp"
FORMS = {"sdk": perfetto.sdk_trace, "torch": perfetto.torch_trace}


@cache
def window(rank: int = 0) -> dict[str, Any]:
    with gzip.open(RUN / f"rank{rank}.json.gz") as f:
        return json.load(f)


def rows(trace: Trace) -> Counter[tuple[Any, ...]]:
    timed = np.flatnonzero(trace["ph"] == ord("X"))
    columns = (trace["ts_ns"], trace["dur_ns"], event_kinds(trace), trace["name"], trace["pid"], trace["tid"])
    correlation = trace.arg("correlation").at(timed, missing=-1).tolist()
    listed = zip(*(c[timed].tolist() for c in columns), correlation, strict=True)
    return Counter((ts, dur, kind, trace.text(name), *rest) for ts, dur, kind, name, *rest in listed)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_window_exported_both_ways_has_one_account(tmp_path: Path, form: str) -> None:
    documents = {}
    for kind in ("json", "pftrace"):
        (folder := tmp_path / kind).mkdir()
        for rank in range(4):
            if kind == "json":
                perfetto.as_json(window(rank), folder / f"rank{rank}.json")
            else:
                (folder / f"rank{rank}.pftrace").write_bytes(FORMS[form](window(rank)))
        document = json.loads(json.dumps(stepscope.load(folder).document))
        document["run"] = {k: v for k, v in document["run"].items() if k not in ("sources", "name")}
        for of_rank in document["ranks"]:
            of_rank.pop("num_events")  # flows are no packets of their own
        documents[kind] = document
    assert documents["pftrace"] == documents["json"]


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
@pytest.mark.parametrize("form", FORMS)
def test_perfettos_own_reader_finds_the_same_slices(tmp_path: Path, form: str) -> None:
    (path := tmp_path / "rank0.pftrace").write_bytes(FORMS[form](window()))
    every, args = queried(
        path.read_bytes(),
        "select dur, name from slice",
        "select key, count(*) from args where key like 'debug%' group by 1",
    )
    ours = read(path)
    assert len(every) == sum(rows(ours).values())
    if form == "sdk":  # where begins and ends come in blocks, its reader pairs slices that touch wrongly
        assert Counter(every) == Counter((dur, name) for _, dur, _, name, *_ in rows(ours).elements())
        assert dict(args)["debug.correlation"] == len(ours.arg("correlation").rows)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_what_precedes_a_cut_is_kept(tmp_path: Path, form: str, share: float) -> None:
    path = tmp_path / "rank0.pftrace"
    whole = FORMS[form](window())
    path.write_bytes(whole)
    all_rows = rows(read(path))
    path.write_bytes(whole[: int(share * len(whole))])
    try:
        cut = read(path)
    except TraceError as error:
        assert form == "torch" and share < 0.6 and "none of its entries" in str(error)  # no slice has ended yet
        return
    assert cut.quality.truncated and not rows(cut) - all_rows
    assert (sum(rows(cut).values()) > 0.3 * share * sum(all_rows.values())) or form == "torch"


def test_reading_goes_on_behind_damage(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pftrace"
    whole = bytearray(perfetto.sdk_trace(window()))
    path.write_bytes(whole)
    everything = sum(rows(read(path)).values())
    at = len(whole) // 3
    whole[at : at + 300] = Random(4).randbytes(300)
    path.write_bytes(whole)
    damaged = read(path)
    assert damaged.quality.malformed and damaged.quality.first_bad_offset
    assert sum(rows(damaged).values()) > 0.9 * everything
    whole[at:] = b"\x0a" * (len(whole) - at)  # each may begin a packet
    path.write_bytes(whole)
    assert read(path).quality.malformed


def slices(*of: tuple[int, int, int, str], order: Callable[[list[bytes]], list[bytes]]) -> bytes:
    """Return begin and end packets of `(track, start, end, name)`, in the order that they are put in."""
    begins = [packet(number(8, s), message(11, number(9, 1), number(11, t), text(23, n))) for t, s, _, n in of]
    ends = [packet(number(8, e), message(11, number(9, 2), number(11, t))) for t, _, e, _ in of]
    return b"".join(order([*begins, *ends]))


TOUCHING = ((1, 0, 10, "a"), (1, 10, 20, "b"), (1, 20, 30, "c"), (2, 5, 25, "d"), (1, 22, 28, "e"))


def test_slices_that_touch_are_paired_in_blocks_of_begins_and_ends(tmp_path: Path) -> None:
    (path := tmp_path / "rank0.pftrace").write_bytes(slices(*TOUCHING, order=list))
    found = read(path)
    timed = zip(found["ts_ns"].tolist(), found["dur_ns"].tolist(), found["name"].tolist(), strict=True)
    assert {(found.text(n), ts, dur) for ts, dur, n in timed} == {(n, s, e - s) for _, s, e, n in TOUCHING}


@pytest.mark.slow
def test_slices_far_from_their_ends(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pftrace"
    short = [(t, t + 1) for t in range(40_000)]
    one_by_one = b"".join(slices((2, start, end, "short"), order=list) for start, end in short)
    in_blocks = slices(*((3, start, end, "short") for start, end in short), order=list)
    path.write_bytes(slices((1, 0, 50_000, "long"), order=lambda p: [p[0], one_by_one, p[1], in_blocks]))
    found = read(path)
    durations = Counter(zip(map(found.text, found["name"].tolist()), found["dur_ns"].tolist(), strict=True))
    assert durations == {("short", 1): 2 * len(short), ("long", 50_000): 1}


def test_a_track_whose_times_run_backwards_is_sorted(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pftrace"
    late_first = slices(
        (1, 10, 20, "a"), (1, 0, 5, "b"), (1, 1, 4, "c"), order=lambda p: [p[0], p[1], p[4], p[3], *p[2::3]]
    )
    path.write_bytes(late_first)
    found = read(path)
    assert dict(zip(map(found.text, found["name"].tolist()), found["dur_ns"].tolist(), strict=True)) == {
        "a": 10,
        "b": 5,
        "c": 3,
    }


def test_ends_without_a_begin_and_begins_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pftrace"
    nested = slices((1, 2, 9, "outer"), (1, 3, 8, "inner"), order=lambda p: [p[0], p[1], p[3], p[2]])
    stray = packet(number(8, 1), message(11, number(9, 2), number(11, 1)))
    still_open = packet(number(8, 10), message(11, number(9, 1), number(11, 1), text(23, "open")))
    path.write_bytes(stray + nested + still_open + stray[:0])
    found = read(path)
    assert sorted(found["dur_ns"].tolist()) == [5, 7] and found.text(found["name"][0]) == "outer"
    assert found.quality.notes == ("1 slices without an end are left out",)


def test_tracks_of_rocprofv3_are_devices_and_streams(tmp_path: Path) -> None:
    path = tmp_path / "rank0.pftrace"
    process = packet(message(60, number(1, 9), message(3, number(1, 77), text(6, "python"))))
    named = packet(message(60, number(1, 1), number(5, 9), text(2, "COMPUTE AGENT [2] STREAM [5] (GPU)")))
    thread = packet(message(60, number(1, 2), number(5, 9), text(2, "THREAD 1 (123)")))

    def slice_on(track: int, start: int, name: str, category: str) -> bytes:
        event = (number(9, 1), number(11, track), text(22, category), text(23, name))
        args = message(4, text(10, "corr_id"), number(3, 42))
        return packet(number(8, start), message(11, *event, args)) + packet(
            number(8, start + 7), message(11, number(9, 2), number(11, track))
        )

    work = slice_on(1, 100, "Cijk_gemm", "kernel_dispatch") + slice_on(2, 90, "hipLaunchKernel", "hip_api")
    path.write_bytes(process + work + named + thread)  # descriptors may come last
    found = rows(read(path))
    assert set(found) == {(100, 7, 1, "Cijk_gemm", 2, 5, 42), (90, 7, 5, "hipLaunchKernel", 77, 123, 42)}
    assert labels(read(path), "process_name") == {(77, 0): "python"}


def nested_value(depth: int) -> bytes:
    value = number(4, 1)
    for _ in range(depth):
        value = message(12, value)
    return value


HOSTILE = {
    "a list in a thousand lists": message(4, text(10, "Input Dims"), nested_value(1000)),
    "a name of ten megabytes": text(23, "x" * 10_000_000),
    "names that stand for nothing": number(10, 99) + number(3, 98) + message(4, number(1, 97), number(4, 5)),
    "numbers of the wrong kind": number(23, 5) + message(9, b"x") + message(4, text(10, "grid"), number(2, 1)),
    "a number beyond 64 bits": message(4, text(10, "correlation"), number(3, (1 << 64) - 1)),
    "no text": message(23, b"\xff\xfe\x00") + message(4, message(10, b"dtype"), message(6, b"\xff")),
    "a double that is no number": message(4, text(10, "correlation"), b"\x29" + b"\xff" * 8),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_values(tmp_path: Path, what: str) -> None:
    path = tmp_path / "rank0.pftrace"
    honest = slices((1, 100, 200, "aten::mm"), order=list)
    begin = packet(number(8, 120), message(11, number(9, 1), number(11, 3), HOSTILE[what]))
    end = packet(number(8, 130), message(11, number(9, 2), number(11, 3)))
    path.write_bytes(honest + begin + end + slices((1, 300, 400, "aten::add"), order=list))
    found = read(path)
    assert {(n, d) for _, d, _, n, *_ in rows(found)} >= {("aten::mm", 100), ("aten::add", 100)}


def test_a_timeline_of_ours_is_no_recording(tmp_path: Path) -> None:
    (run := tmp_path / "run").mkdir()
    for rank in range(2):
        perfetto.as_json(window(rank), run / f"rank{rank}.json")
    stepscope.load(run).to_perfetto(run / "timeline.pftrace")
    assert len(stepscope.load(run).document["ranks"]) == 2
    with pytest.raises(TraceError, match="timeline that stepscope wrote"):
        read(run / "timeline.pftrace")


def test_packets_that_repeat_mean_what_was_said_last(tmp_path: Path) -> None:
    """Of equal packets only the numbers are read again, unless names, arguments or defaults change in between."""

    def event(at: int, value: int, *args: bytes) -> bytes:
        body = message(4, text(10, "correlation"), number(4, value)), *args
        return packet(number(8, at), number(10, 1), message(11, number(9, 3), number(10, 5), number(11, 2), *body))

    def names(name: str) -> bytes:
        return packet(number(10, 1), message(12, message(2, number(1, 5), text(2, name))))

    twice = message(4, text(10, "correlation"), number(4, 77))
    wide = packet(number(8, 1300), number(10, 1), message(11, number(9, 3), number(10, 5), number(11, 2)))
    parts = [event(1000, 1), names("a"), event(1001, 2), event(1002, 3), names("b"), event(1003, 4), event(1004, 300)]
    parts += [event(1005, 5, twice), event(1006, 6, twice), wide, wide]
    parts += [
        packet(number(8, 9), message(53, number(1, 5), number(2, 7), *bad)) for bad in ((), (b"\x0f",), (b"\x0f",))
    ]
    (path := tmp_path / "rank0.pftrace").write_bytes(packet(message(60, number(1, 2), text(2, "t"))) + b"".join(parts))
    trace = read(path)
    events = np.flatnonzero(trace["ph"] == ord("i"))
    assert np.count_nonzero(trace["ph"] == ord("X")) == 1 and trace.quality.malformed == 2
    found = zip(trace["name"][events].tolist(), trace.arg("correlation").at(events, missing=0).tolist(), strict=True)
    assert [(trace.text(name) if name >= 0 else None, value) for name, value in found] == [
        (None, 1), ("a", 2), ("a", 3), ("b", 4), ("b", 300), ("b", 77), ("b", 77), ("b", 0), ("b", 0),
    ]  # fmt: skip
