"""Any valid trace, in any layout, gives the same columns as the standard library's json with exact decimals."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trace import oracle
from tests.trace.layouts import Layout, Pairs, Raw, events, headers, layouts, written

from stepscope.trace import read as blocks
from stepscope.trace import read as reading
from stepscope.trace.implausible_values import Columns, PlausibleColumns
from stepscope.trace.read import read
from stepscope.trace.table import NONE_NS, SparseColumn

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


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(events(), min_size=1, max_size=6), headers, layouts)
def test_valid_trace_in_any_layout_equals_the_oracle(
    file: Path, some: list[Pairs], header: dict[str, Any], layout: Layout
) -> None:
    data = written([*some, SOUND], header, layout)
    file.write_bytes(data)
    check(file, data.decode())


SOUND = Pairs((("ph", "X"), ("name", "sound"), ("ts", 1), ("dur", 1)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.lists(events(), min_size=1, max_size=12),
    headers,
    layouts,
    st.sampled_from([1, 2, 3]),
    st.sampled_from([32, 200, 1000]),
    st.sampled_from([16, 100, 5000]),
)
def test_blocks_and_threads_make_no_difference(
    file: Path,
    some: list[Pairs],
    header: dict[str, Any],
    layout: Layout,
    threads: int,
    block: int,
    chunk: int,
) -> None:
    data = written([*some, SOUND], header, layout)
    file.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "_BLOCK_BYTES", block)
        patched.setattr(reading, "_CHUNK_BYTES", chunk)
        check(file, data.decode(), threads=threads)


USUAL = ("7", "12345678", "123456789012345", "1234567890123456", "0.5", "1.125")
ODD = (
    "0",
    "-1",
    "12345678901234567",
    "9000000000000001",
    "9" * 20,
    "1.1251",
    "7.0",
    "1e3",
    "-0.25",
    "null",
    '"7"',
    "[1]",
)
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
        ("ph", "X"),
        ("name", "alike"),
        ("id", draw(_numbers)),
        ("ts", draw(_numbers)),
        ("dur", draw(_numbers)),
    ]
    members.append(("args", Pairs(tuple(args))))
    if draw(st.integers(0, 7)) == 0:
        members.append(draw(st.sampled_from([("args", None), ("ts", 5), ("args", Pairs(())), ("name", "other")])))
    return Pairs(tuple(members))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(events(), max_size=2),
    st.lists(alike(), min_size=3, max_size=30),
    headers,
    layouts,
    st.sampled_from([100, 1000, 1 << 20]),
)
def test_events_that_differ_in_their_numbers_alone(
    file: Path, some: list[Pairs], similar: list[Pairs], header: dict[str, Any], layout: Layout, block: int
) -> None:
    """Most of an event is compared with one before it: any number in it may be spelled otherwise than there."""
    data = written([*some, *similar, *some, *similar, SOUND], header | {"baseTimeNanoseconds": 0}, layout)
    file.write_bytes(data)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "_BLOCK_BYTES", block)
        check(file, data.decode())


@pytest.mark.slow
@pytest.mark.parametrize("path", [DATA / "h200-fsdp2/rank0.json.gz", *sorted(DATA.glob("layouts/*.gz"))], ids=str)
def test_real_trace_equals_the_oracle(path: Path) -> None:
    check(path, gzip.decompress(path.read_bytes()).decode(), threads=2)
    assert read(path).quality.far_times == 0
