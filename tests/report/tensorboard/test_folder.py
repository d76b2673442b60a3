"""The folder for TensorBoard: traces byte for byte, and curves that an independent reader gets back."""

import gzip
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run
from tests.analyze.step_logs import log_lines, write_log
from tests.diagnose.late import OWN_US, late_run
from tests.report.trace_processor import fields

from stepscope.analyze.account import account_of
from stepscope.analyze.efficiency import GivenValues
from stepscope.contract.run_folder import trace_file
from stepscope.contract.tensorboard import crc32c
from stepscope.report.tensorboard import EVENT_FILE, Scalar, event_file, scalars_of, tensorboard_files
from stepscope.run.load import load

LATE_US = 2000.0


def records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an event file, each checksum checked."""
    at = 0
    while at < len(data):
        head = data[at : at + 8]
        (size,) = struct.unpack("<Q", head)
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack("<I", data[at + 8 : at + 12])[0] == masked(head)
        assert struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0] == masked(body)
        yield body
        at += 16 + size


def masked(data: bytes) -> int:
    value = crc32c(data)
    return (((value >> 15) | (value << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def curves(data: bytes) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    listed = [dict(fields(record)) for record in records(data)]
    assert listed[0][3] == b"brain.Event:2"
    for event in listed[1:]:
        value: dict[int, Any] = dict(fields(dict(fields(event[5]))[1]))
        number = struct.unpack("<f", value[2].to_bytes(4, "little"))[0]
        found.setdefault(value[1].decode(), {})[event.get(2, 0)] = number
    return found


@pytest.mark.parametrize(("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (b"\0" * 32, 0x8A9136AA)])
def test_checksum_is_castagnolis(data, crc):
    assert crc32c(data) == crc


def test_numbers_come_back_from_the_file():
    written = [Scalar("a/b", 0, 1.5, 10.0), Scalar("a/b", 7, -2.25, 11.0), Scalar("κ", 3, 0.0, 10.5)]
    assert curves(b"".join(event_file(written))) == {"a/b": {0: 1.5, 7: -2.25}, "κ": {3: 0.0}}


def test_curves_are_those_of_the_account(tmp_path):
    account = account_of(late_run(tmp_path, late_us=LATE_US), given=GivenValues(flops_per_step=1e12, peak_tflops=1000))
    files, notes = tensorboard_files(account)
    found = curves(b"".join(dict(files)[EVENT_FILE]))
    assert not notes
    for step in range(1, 6):
        assert found["step/profiled_ms"][step] == pytest.approx((LATE_US + OWN_US) / 1000, rel=1e-3)
        parts = sum(values[step] for tag, values in found.items() if tag.startswith("budget/"))
        assert parts == pytest.approx(found["step/profiled_ms"][step], rel=1e-4)
        losses = sum(values[step] for tag, values in found.items() if tag.startswith("waterfall/"))
        assert losses == pytest.approx(100, abs=1e-2)
        assert found["budget/wait_ms"][step] == pytest.approx(0.75 * LATE_US / 1000, rel=0.01)  # three of four wait
    step_s = (LATE_US + OWN_US) / 1e6
    assert found["efficiency/mfu"][3] == pytest.approx(1e12 / (4 * 1000e12 * step_s), rel=1e-3)


def test_logged_steps_are_a_curve_of_their_own(tmp_path):
    write_log(tmp_path, 0, log_lines([5.0] * 4, window=range(1, 2)))
    r = RankTrace(0)
    r.step(1, 0, 1000)
    r.kernel("k", at=10, start=20, end=900)
    logged = [
        (s.tag, s.step) for s in scalars_of(account_of(built_run(tmp_path, [r]))) if s.tag.startswith("step/logged")
    ]
    assert logged == [
        ("step/logged_ms", 0),
        ("step/logged_ms", 3),
        ("step/logged_disturbed_ms", 1),
        ("step/logged_disturbed_ms", 2),
    ]


def test_traces_are_those_recorded_and_a_cut_one_is_left_out(tmp_path):
    late_run(tmp_path, ranks=2)
    cut = tmp_path / trace_file(1)
    cut.write_bytes(gzip.compress(gzip.decompress(cut.read_bytes())[:-4000]))
    files, notes = tensorboard_files(account_of(load(tmp_path, cache=False)))
    packed = b"".join(dict(files)["rank_00000.pt.trace.json.gz"])
    assert gzip.decompress(packed) == gzip.decompress((tmp_path / trace_file(0)).read_bytes())
    assert len(files) == 2 and "rank 1 is not in the folder: it is cut off" in notes[0]
