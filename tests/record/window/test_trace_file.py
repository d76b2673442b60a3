"""Exports that claim success, disks that fill up, traces that are compressed and moved whole.

T1, T2, ... in names number the faults that recording has to survive; `fault_runs.py` has their scenarios.
"""

import gzip
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepscope.record.window.trace_file import compress_into, place_whole, trouble_with_export


@contextmanager
def disk_full_after(size_bytes: int) -> Iterator[None]:
    """Let every file of this process end at a size, as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    ("content", "trouble"),
    [
        (b'{"traceEvents": []}\n', None),
        (b"", "does not begin"),
        (b'{"traceEvents": [{"name": "cut', "breaks off"),
        (b"\0" * 100, "does not begin"),
        (None, "wrote no file"),
    ],
)
def test_T4_export_is_judged_by_its_head_and_tail(tmp_path: Path, content: bytes | None, trouble: str | None) -> None:
    plain = tmp_path / "trace.json"
    if content is not None:
        plain.write_bytes(content)
    found = trouble_with_export(plain)
    assert found is None if trouble is None else trouble in str(found)


def test_compressed_trace_is_the_same_trace(tmp_path: Path) -> None:
    plain, target = tmp_path / "trace.json", tmp_path / "rank00000.pt.trace.json.gz"
    plain.write_bytes(b'{"a": "' + b"x" * 3_000_000 + b'"}')
    assert compress_into(plain, target) == target.stat().st_size < 100_000
    assert gzip.decompress(target.read_bytes()) == plain.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rank00000.pt.trace.json.gz", "trace.json"]


def test_T5_disk_full_halfway_leaves_nothing(tmp_path: Path) -> None:
    plain, target = tmp_path / "trace.json", tmp_path / "rank00000.pt.trace.json.gz"
    plain.write_bytes(b"".join(b"%d," % (i * 7919 % 104729) for i in range(300_000)))
    with disk_full_after(50_000), pytest.raises(OSError, match="large"):
        compress_into(plain, target)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


def test_T5_old_file_stays_when_the_new_one_does_not_fit(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    place_whole(b"old", target)
    with disk_full_after(1_000), pytest.raises(OSError, match="large"):
        place_whole(b"x" * 100_000, target)
    assert target.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["run.json"]
