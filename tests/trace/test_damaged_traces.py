"""Random damage: no error but our own, and no event lost that the damage did not touch.

What holds: after any number of bytes changed, removed or put in anywhere behind the start of the events, every event
that begins with its phase, as Kineto writes them, and was not touched from its opening to its closing brace is in the
table, with all its values. What was touched may be missing, or be there with other values.
"""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace import oracle

from stepscope.errors import StepscopeError, TraceError
from stepscope.trace.read import read
from stepscope.trace.table import Trace

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
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
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


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(edits=_edits)
def test_untouched_events_survive_damage(sound: Sound, file: Path, edits: list[Edit]) -> None:
    data, made = damaged(sound, edits, start=sound.spans[0][0])
    file.write_bytes(data)
    expected = {}
    for (start, end), name in zip(sound.spans, sound.names, strict=True):
        if all(edit_end <= start or at >= end for at, edit_end, _ in made):
            moved = sum(growth for at, edit_end, growth in made if edit_end <= start)
            expected[start + moved] = name
    try:
        trace = read(file)
    except TraceError:
        assert not expected
        return
    found = dict(zip(trace["offset"].tolist(), (trace.text(i) for i in trace["name"].tolist()), strict=True))
    assert expected.items() <= found.items()


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(edits=_edits)
def test_damage_anywhere_gives_a_table_or_our_error_on_any_number_of_threads(
    sound: Sound, file: Path, edits: list[Edit]
) -> None:
    file.write_bytes(damaged(sound, edits, start=0)[0])
    serial, parallel = outcome(file, 1), outcome(file, 2)
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


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(edits=_edits)
def test_damaged_gzip_gives_a_table_or_our_error(sound: Sound, file: Path, edits: list[Edit]) -> None:
    packed = Sound(gzip.compress(sound.data, mtime=0), [], [])
    file.write_bytes(damaged(packed, edits, start=0)[0])
    outcome(file, 1)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_table_or_our_error(file: Path, data: bytes) -> None:
    for start in (b"", b'{"traceEvents": [', b"["):
        file.write_bytes(start + data)
        outcome(file, 1)
