"""Compressed and split traces: whatever the packing, the same table; bombs are refused while they are unpacked."""

import gzip

import numpy as np
import pytest
import zstandard
from tests.trace.test_reading_faults import SAMPLE, event, peak_growth_bytes, text_of

from stepscope.trace.read import read
from stepscope.trace.table import Trace


@pytest.fixture(scope="module")
def raw() -> bytes:
    return gzip.decompress(SAMPLE.read_bytes())


@pytest.fixture(scope="module")
def whole() -> Trace:
    return read(SAMPLE)


def assert_equal(trace: Trace, whole: Trace) -> None:
    assert trace.strings == whole.strings
    assert all(np.array_equal(trace[name], whole[name]) for name in whole.columns)
    assert trace.args.keys() == whole.args.keys()
    for name, sparse in whole.args.items():
        assert np.array_equal(trace.arg(name).rows, sparse.rows)
        assert np.array_equal(trace.arg(name).values, sparse.values)


def test_plain_gzip_and_zstd_give_the_same_table_whatever_the_name(tmp_path, raw, whole):
    packed = {"plain.gz": raw, "gzip.json": gzip.compress(raw), "zstd.json": zstandard.compress(raw)}
    for name, data in packed.items():
        (tmp_path / name).write_bytes(data)
        trace = read(tmp_path / name)
        assert_equal(trace, whole)
        assert trace.raw_bytes == len(raw)
        assert not trace.quality.notes


def test_gzip_members_and_zstd_frames_are_read_to_the_last(tmp_path, raw, whole):
    third = len(raw) // 3
    thirds = [raw[:third], b"", raw[third : 2 * third], raw[2 * third :]]
    (tmp_path / "gzip").write_bytes(b"".join(map(gzip.compress, thirds)))
    (tmp_path / "zstd").write_bytes(b"".join(map(zstandard.compress, thirds)))
    assert_equal(read(tmp_path / "gzip"), whole)
    assert_equal(read(tmp_path / "zstd"), whole)


def test_bytes_after_gzip_are_noted_and_padding_is_not(tmp_path):
    (path := tmp_path / "trace.json.gz").write_bytes(gzip.compress(text_of(event()).encode()) + b"\0" * 600)
    assert read(path).quality.notes == ()
    path.write_bytes(gzip.compress(text_of(event()).encode()) + b"rubbish")
    assert read(path).quality.notes == ("bytes after the compressed data are ignored",)


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_cut_or_damaged_packing_keeps_what_can_be_unpacked(tmp_path, raw, whole, packing):
    data = gzip.compress(raw) if packing == "gzip" else zstandard.compress(raw)
    half = len(data) // 2
    path = tmp_path / "trace"
    for damaged in (data[:half], data[:half] + b"\xff" * 64 + data[half + 64 :]):
        path.write_bytes(damaged)
        trace = read(path)
        assert trace.quality.truncated
        assert 0 < trace.num_events < whole.num_events
        assert np.array_equal(trace["ts_ns"][:-2], whole["ts_ns"][: trace.num_events - 2])


BOMBS = {
    "spaces": b" " * (1 << 20),
    "zeros": b"\0" * (1 << 20),
    "events": b'{"ph": "M", "name": "a"},' * (1 << 15),
    "a name": b"x" * (1 << 20),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "packing"), [("spaces", "gzip"), ("zeros", "zstd"), ("events", "gzip"), ("a name", "zstd")]
)
def test_bomb_is_refused_in_bounded_memory(tmp_path, content, packing):
    path = tmp_path / "trace.json"
    start = b'{"traceEvents": [' + (b'{"ph": "X", "name": "' if content == "a name" else b"")
    packer = gzip.compress if packing == "gzip" else zstandard.compress
    path.write_bytes(packer(start) + packer(BOMBS[content] * 200))
    grown = peak_growth_bytes(
        "from stepscope.errors import TraceError\n"
        f"try: read({str(path)!r})\n"
        "except TraceError as e: assert 'bomb' in str(e) or 'traceEvents' in str(e), e\n"
        "else: raise SystemExit('not refused')",
        warm_up=SAMPLE,
    )
    assert grown < 50 << 20
