"""Valid traces in any layout equal the standard library's json; damaged ones lose no event that was not touched.

After any number of bytes changed, removed or put in anywhere behind the start of the events, every event that begins
with its phase, as Kineto writes them, and was not touched is in the table, with all its values.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.trace import oracle
from tests.trace.layouts import Pairs, Raw, events, headers, layouts, written

from stepscope.errors import StepscopeError, TraceError
from stepscope.trace import read as blocks, read as reading
from stepscope.trace.read import read
from stepscope.trace.table import NONE_NS, Columns, PlausibleColumns, SparseColumn, Trace

pytestmark = pytest.mark.slow

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("valid") / "trace.json"


def as_parsed(columns: Columns, args: dict[str, SparseColumn], *, base_ns: int) -> PlausibleColumns:
    """Return all that was parsed, whether it can be true or not: `test_plausible` has what is left out of that."""
    known = columns["ts_ns"] != NONE_NS
    low, high = (int(f(where=known, initial=0)) for f in (columns["ts_ns"].min, columns["ts_ns"].max))
    if low + base_ns > NONE_NS and high + base_ns < 2**63:
        np.add(columns["ts_ns"], base_ns, out=columns["ts_ns"], where=known)
    return PlausibleColumns(columns, args, 0, 0, ())


def check(path: Path, text: str, *, threads: int = 1) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reading, "drop_implausible", as_parsed)
        trace = read(path, threads=threads)
    rows, counts = oracle.rows(text)
    oracle.assert_same(trace, rows)
    quality = trace.quality
    assert {name: getattr(quality, name) for name in counts} == counts
    assert not (quality.truncated or quality.malformed or quality.repaired or quality.bad_text or quality.shortened)


@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=1, max_size=6), headers, layouts)
def test_valid_trace_in_any_layout_equals_the_oracle(file, some, header, layout):
    data = written([*some, SOUND], header, layout)
    file.write_bytes(data)
    check(file, data.decode())


SOUND = Pairs((("ph", "X"), ("name", "sound"), ("ts", 1), ("dur", 1)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(events(), min_size=1, max_size=12), headers, layouts, st.sampled_from([1, 2, 3]),
    st.sampled_from([32, 200, 1000]), st.sampled_from([16, 100, 5000]),
)  # fmt: skip
def test_blocks_and_threads_make_no_difference(file, some, header, layout, threads, block, chunk):
    data = written([*some, SOUND], header, layout)
    file.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "_BLOCK_BYTES", block)
        patched.setattr(reading, "_CHUNK_BYTES", chunk)
        check(file, data.decode(), threads=threads)


USUAL = ("7", "12345678", "123456789012345", "1234567890123456", "0.5", "1.125")
ODD = (
    "0", "-1", "12345678901234567", "9000000000000001", "9" * 20, "1.1251", "7.0", "1e3", "-0.25", "null", '"7"', "[1]",
)  # fmt: skip
_numbers = st.sampled_from(3 * USUAL + ODD).map(Raw)


@st.composite
def alike(draw: st.DrawFn) -> Pairs:
    """Return an event that differs from the next one in its numbers, and now and then in a key that comes twice."""
    args = [
        ("External id", draw(_numbers)),
        ("Odd", draw(_numbers)),
        ("Input Dims", [[1], []]),
        ("stream", draw(_numbers)),
    ]
    if draw(st.integers(0, 7)) == 0:
        args.append(("stream", draw(_numbers)))
    members: list[tuple[str, Any]] = [
        ("ph", "X"), ("name", "alike"), ("id", draw(_numbers)), ("ts", draw(_numbers)), ("dur", draw(_numbers)),
    ]  # fmt: skip
    members.append(("args", Pairs(tuple(args))))
    if draw(st.integers(0, 7)) == 0:
        members.append(draw(st.sampled_from([("args", None), ("ts", 5), ("args", Pairs(())), ("name", "other")])))
    return Pairs(tuple(members))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(events(), max_size=2),
    st.lists(alike(), min_size=3, max_size=30),
    headers,
    layouts,
    st.sampled_from([100, 1000, 1 << 20]),
)
def test_events_that_differ_in_their_numbers_alone(file, some, similar, header, layout, block):
    """Most of an event is compared with one before it: any number in it may be spelled otherwise than there."""
    data = written([*some, *similar, *some, *similar, SOUND], header | {"baseTimeNanoseconds": 0}, layout)
    file.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "_BLOCK_BYTES", block)
        check(file, data.decode())


@pytest.mark.parametrize("path", [DATA / "h200-fsdp2/rank0.json.gz", *sorted(DATA.glob("layouts/*.gz"))], ids=str)
def test_real_trace_equals_the_oracle(path: Path) -> None:
    check(path, gzip.decompress(path.read_bytes()).decode(), threads=2)
    assert read(path).quality.far_times == 0


SAMPLE = Path(__file__).parent.parent / "data" / "h200-fsdp2" / "rank0.json.gz"


@dataclass(frozen=True)
class Sound:
    """A small sound trace: its bytes and where each event begins and ends."""

    data: bytes
    spans: list[tuple[int, int]]
    names: list[str]


@pytest.fixture(scope="module")
def sound() -> Sound:
    text = gzip.decompress(SAMPLE.read_bytes()).decode()
    located = oracle.located_events(text)
    first, last = located[0][1], located[-1][1]
    end = text.index("\n  ]", last)
    some = [at for event, at in located[::170] if next(iter(event)) == "ph"]
    events = [text[at : json.JSONDecoder().raw_decode(text, at)[1]] for at in some]
    data, spans = text[:first], []
    for event in events:
        spans.append((len(data), len(data) + len(event)))
        data += event + ",\n  "
    data = data.rstrip(", \n") + text[end:]
    return Sound(data.encode(), spans, [json.loads(e)["name"] for e in events])


@pytest.fixture(scope="module")
def damaged_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("damaged") / "trace.json"


@dataclass(frozen=True)
class Edit:
    """At a share of the file, so many bytes are replaced."""

    where: float
    removed: int
    put: bytes


_dirt = st.lists(
    st.sampled_from(
        [b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\n", b"\0", b"x", b"7", b"\xff", b'"ph":', b"},{", b'],"']
    ),
    max_size=4,
).map(b"".join)
_edits = st.lists(
    st.builds(
        Edit,
        where=st.floats(0, 1, exclude_max=True),
        removed=st.sampled_from([0, 0, 1, 1, 2, 10, 100, 1500]),
        put=_dirt | st.binary(max_size=3),
    ),
    min_size=1,
    max_size=4,
)


def damaged(sound: Sound, edits: list[Edit], *, start: int) -> tuple[bytes, list[tuple[int, int, int]]]:
    """Return the damaged bytes, and the edits made as (start, end, growth) on the sound ones."""
    data, made = bytearray(sound.data), []
    limit = len(data)
    for edit in sorted(edits, key=lambda e: -e.where):
        at = min(start + int(edit.where * (len(sound.data) - start)), limit)
        end = min(at + edit.removed, limit)
        data[at:end] = edit.put
        made.append((at, end, len(edit.put) - (end - at)))
        limit = at
    return bytes(data), made


@settings(max_examples=400, deadline=None)
@given(edits=_edits)
def test_untouched_events_survive_damage(sound: Sound, damaged_file: Path, edits: list[Edit]) -> None:
    data, made = damaged(sound, edits, start=sound.spans[0][0])
    damaged_file.write_bytes(data)
    expected = {}
    for (start, end), name in zip(sound.spans, sound.names, strict=True):
        if all(edit_end <= start or at >= end for at, edit_end, _ in made):
            moved = sum(growth for at, edit_end, growth in made if edit_end <= start)
            expected[start + moved] = name
    try:
        trace = read(damaged_file)
    except TraceError:
        assert not expected
        return
    found = dict(zip(trace["offset"].tolist(), (trace.text(i) for i in trace["name"].tolist()), strict=True))
    assert expected.items() <= found.items()


@settings(max_examples=150, deadline=None)
@given(edits=_edits)
def test_damage_anywhere_gives_a_table_or_our_error_on_any_number_of_threads(sound, damaged_file, edits):
    damaged_file.write_bytes(damaged(sound, edits, start=0)[0])
    serial, parallel = outcome(damaged_file, 1), outcome(damaged_file, 2)
    assert type(serial) is type(parallel)
    if isinstance(serial, Trace) and isinstance(parallel, Trace):
        assert serial.quality == parallel.quality
        for column in ("ph", "pid", "ts_ns", "dur_ns", "offset"):
            assert np.array_equal(serial[column], parallel[column])


def outcome(path: Path, threads: int) -> Trace | str:
    try:
        return read(path, threads=threads)
    except StepscopeError as e:
        assert "\n" not in str(e)
        return str(e)
