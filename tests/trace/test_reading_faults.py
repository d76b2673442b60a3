"""Bad input of every known kind: a table with a note of what it cost, or one line of error."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.errors import TraceError
from stepscope.trace.read import read
from stepscope.trace.table import Trace

SAMPLE = Path(__file__).parent.parent / "data" / "h200-fsdp2" / "rank0.json.gz"


def event(**fields: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 10, "dur": 5} | fields


def text_of(*events: dict[str, Any] | str) -> str:
    """Return a trace in Kineto's layout; an event given as a string is written as it is."""
    parts = [e if isinstance(e, str) else json.dumps(e) for e in events]
    return '{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + ",\n  ".join(parts) + '\n  ],\n  "traceName": "x"\n}'


def read_text(folder: Path, text: str | bytes) -> Trace:
    (path := folder / "trace.json").write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path)


def names(trace: Trace) -> list[str | None]:
    return [trace.text(i) for i in trace["name"].tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True], ids=["json", "gzip"])
def test_cut_file_keeps_the_events_before_the_cut(tmp_path: Path, packed: bool) -> None:
    raw = gzip.decompress(SAMPLE.read_bytes())
    whole = read(SAMPLE)
    data = gzip.compress(raw, 1) if packed else raw
    before = -1
    for part in range(1, 64):
        (path := tmp_path / "cut.json").write_bytes(data[: len(data) * part // 64])
        trace = read(path)
        assert trace.quality.truncated
        assert not trace.quality.malformed
        assert trace.num_events > before
        before = trace.num_events
        for column in ("ts_ns", "dur_ns", "offset"):
            assert np.array_equal(trace[column], whole[column][: trace.num_events])
    assert not whole.quality.truncated


@pytest.mark.parametrize(
    "bad", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 400, '"12 us"', '""', '"-"', "[1]", "true"]
)
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_event_without_a_finite_time_is_dropped_and_counted(tmp_path: Path, field: str, bad: str) -> None:
    other = "dur" if field == "ts" else "ts"
    broken = f'{{"ph": "X", "name": "broken", "{field}": {bad}, "{other}": 1, "args": {{"stream": 7}}}}'
    trace = read_text(tmp_path, text_of(event(name="a"), broken, event(name="b")))
    assert names(trace) == ["a", "b"]
    assert trace.quality.bad_time == 1
    assert trace.quality.malformed == 0
    assert not len(trace.arg("stream").rows)


def test_negative_duration_is_dropped_and_zero_is_kept(tmp_path: Path) -> None:
    trace = read_text(tmp_path, text_of(event(dur=-0.001), event(dur=0), event(dur=-0.0)))
    assert trace["dur_ns"].tolist() == [0, 0]
    assert trace.quality.negative_duration == 1


def test_times_are_exact_where_floats_are_not(tmp_path: Path) -> None:
    stamps = ["3850983455851.745", "1699999999999999.001", "0.0005", "1e-3", "12.3456", "0.00049", "-7.5", "123E2"]
    trace = read_text(tmp_path, text_of(*(f'{{"ph": "i", "ts": {s}}}' for s in stamps)))
    assert trace["ts_ns"].tolist() == [
        3850983455851745, 1699999999999999001, 1, 1, 12346, 0, -7500, 12300000,
    ]  # fmt: skip


def test_last_of_duplicate_keys_wins(tmp_path: Path) -> None:
    twice = (
        '{"ph": "i", "name": "a", "ts": NaN, "ts": 2, "name": "b",'
        ' "args": {"stream": 1, "device": 3}, "args": {"stream": 5, "stream": 6}}'
    )
    trace = read_text(tmp_path, text_of(twice))
    assert names(trace) == ["b"]
    assert trace["ts_ns"].tolist() == [2000]
    assert trace.arg("stream").values.tolist() == [6]
    assert not len(trace.arg("device").rows)


def test_bad_text_is_replaced_and_counted(tmp_path: Path) -> None:
    def named(name: bytes) -> bytes:
        return b'{"ph": "i", "name": "' + name + b'"}'

    bad = [b"a\xffb", b"lone \\ud800 surrogate", b"raw\ttab", b"bad \\x escape", b"cut \\u12 escape"]
    data = text_of(event(name="sound")).encode()
    data = data.replace(b"\n  ]", b",\n  " + b",\n  ".join(map(named, bad)) + b"\n  ]")
    trace = read_text(tmp_path, data)
    assert names(trace) == [
        "sound", "a\ufffdb", "lone \ufffd surrogate", "raw\ufffdtab", "bad \\x escape", "cut \\u12 escape",
    ]  # fmt: skip
    assert trace.quality.bad_text == 5
    assert trace.quality.repaired == 1
    "".join(trace.strings).encode()


def test_bare_quotes_in_names_are_mended(tmp_path: Path) -> None:
    bare = [
        '{"ph": "X", "cat": "kernel", "name": "void f<"x", 3>(int)", "pid": 0, "tid": 7,\n "ts": 1, "dur": 2}',
        '{"ph": "X", "name": "say "hello"", "ts": 3, "dur": 2,\n "args": {"kernel": "g("a", "b")", "stream": 7}}',
    ]
    trace = read_text(tmp_path, text_of(event(name="a"), *bare, event(name="b")))
    assert names(trace) == ["a", 'void f<"x", 3>(int)', 'say "hello"', "b"]
    assert trace.text(int(trace.arg("kernel").values[0])) == 'g("a", "b")'
    assert trace.arg("stream").values.tolist() == [7]
    assert trace.quality.repaired == 2
    assert trace.quality.malformed == 0


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a": ' + "[" * 100_000,
        '{"traceEvents": [{"ph": "X", "args": {"Input Dims": ' + "[" * 100_000 + "]" * 100_000 + "}}]}",
        '{"traceEvents": ' + "[" * 100_000 + "]" * 100_000 + "}",
    ],
    ids=["bare", "in the header", "in an event", "as events"],
)
def test_deep_nesting_is_refused_quickly(tmp_path: Path, text: str) -> None:
    read_text(tmp_path, text_of(event()))  # compiled by now
    start = time.process_time()
    with pytest.raises(TraceError):
        read_text(tmp_path, text)
    assert time.process_time() - start < 1


def test_deep_nesting_costs_only_its_event(tmp_path: Path) -> None:
    deep = '{"ph": "X", "ts": 1, "dur": 1, "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    trace = read_text(tmp_path, text_of(event(name="a"), deep, event(name="b")))
    assert names(trace) == ["a", "b"]
    assert trace.quality.malformed == 1


def test_long_name_is_shortened_and_kept_once(tmp_path: Path) -> None:
    long = "x" * (10 << 20)
    trace = read_text(tmp_path, text_of(event(name=long), event(name="a"), event(name=long)))
    first, second, third = names(trace)
    assert first == third
    assert second == "a"
    assert first is not None and first.endswith("…") and len(first) == 65537
    assert trace.quality.shortened == 1


@pytest.mark.slow
def test_too_many_distinct_names_are_one_line_of_error(tmp_path: Path) -> None:
    path = tmp_path / "names.json"
    with path.open("w") as f:
        f.write('{"traceEvents": [')
        for block in range(0, 4_400_000, 100_000):
            f.writelines(f'{{"ph":"M","name":"{i:x}"}},' for i in range(block, block + 100_000))
        f.write('{"ph":"M"}]}')
    with pytest.raises(TraceError, match="distinct strings") as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_byte_order_mark_and_trailing_garbage_are_noted(tmp_path: Path) -> None:
    trace = read_text(tmp_path, b"\xef\xbb\xbf" + text_of(event()).encode() + b"\n<html>\0\0")
    assert trace.num_events == 1
    assert trace.header == {"schemaVersion": 1, "traceName": "x"}
    assert trace.quality.notes == ("byte-order mark", "bytes after the end of the JSON are ignored")
    assert not trace.quality.truncated


def test_what_is_no_file_is_one_line_of_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "empty.json").touch()
    (tmp_path / "loop.json").symlink_to("loop.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("fifo.json", "folder.json", "empty.json", "loop.json", "zero.json", "missing.json"):
        with pytest.raises(TraceError) as caught:
            read(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    "unit",
    [
        '{"x":[["aaaaaaaaaaaaaaaaaaaa"},', '{"\x01', '{"ph":"X","name":"', '},{"ph":', '],"a":', '"a":[1],',
        "]}" * 500 + '"ph":', '{"ph":{"', '{"a":' * 60 + "1" + "}" * 60, "{\t" * 8 + '"',
    ],
)  # fmt: skip
def test_damage_made_to_be_slow_is_read_in_linear_time(tmp_path: Path, unit: str) -> None:
    def cpu_seconds(size: int) -> float:
        start = time.process_time()
        read_text(tmp_path, '{"traceEvents": [{"ph": "M"},' + unit * (size // len(unit)) + "]}")
        return time.process_time() - start

    cpu_seconds(1 << 20)
    tries = ((cpu_seconds(1 << 20), cpu_seconds(1 << 23)) for _ in range(3))  # a busy machine may slow down one
    assert any(large < 40 * max(small, 0.01) for small, large in tries)


@pytest.mark.slow
def test_reading_needs_less_memory_than_the_file_has_bytes(tmp_path: Path) -> None:
    raw = gzip.decompress(SAMPLE.read_bytes()).decode()
    start, end = raw.index("[", raw.index("traceEvents")) + 1, raw.rindex("\n  ]")
    path = tmp_path / "large.json"
    with path.open("w") as f:
        f.write(raw[:start])
        for _ in range(12):
            f.write(raw[start:end] + ",")
        f.write(raw[start:])
    peak = peak_growth_bytes(f"from stepscope.trace.read import read; read({str(path)!r})", warm_up=SAMPLE)
    assert peak < 1.5 * path.stat().st_size


def peak_growth_bytes(code: str, *, warm_up: Path) -> int:
    """Return by how much the peak memory of a fresh process grows, beyond reading a small trace."""
    program = (
        "import resource, sys\n"
        f"from stepscope.trace.read import read; read({str(warm_up)!r})\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"{code}\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)
