"""Event files are what TensorBoard reads: records with checksums, scalars by tag and step."""

import struct
from pathlib import Path

import pytest

from stepscope.bench.trainer.events import Events
from stepscope.contract.tensorboard import checksum


def records(path: Path) -> list[bytes]:
    content, found = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert content[8:12] == checksum(content[:8])
        found.append(content[12 : 12 + length])
        assert content[12 + length : 16 + length] == checksum(found[-1])
        content = content[16 + length :]
    return found


def test_checksum_is_the_masked_crc32c() -> None:
    crc = 0xE3069283  # CRC-32C of "123456789", as in every catalogue of checksums
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert checksum(b"123456789") == struct.pack("<I", masked)


def test_file_begins_with_its_version_and_holds_every_scalar(tmp_path: Path) -> None:
    events = Events(tmp_path / "logs")
    events.scalars(300, {"loss": 1.5})
    events.close()
    version, event = records(events.path)
    assert version.endswith(b"\x1a\x0dbrain.Event:2")
    assert event[9:] == b"\x10\xac\x02" + b"\x2a\x0d\x0a\x0b\x0a\x04loss\x15" + struct.pack("<f", 1.5)


def test_tensorboard_reads_it(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = Events(tmp_path)
    for step in range(3):
        events.scalars(step, {"loss": 3.0 - step, "learning_rate": 0.1})
    events.close()
    read = accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert read.Tags()["scalars"] == ["loss", "learning_rate"]
    assert [(e.step, e.value) for e in read.Scalars("loss")] == [(0, 3.0), (1, 2.0), (2, 1.0)]
