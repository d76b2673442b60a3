"""Pickles are read for their plain data and nothing in them is run."""

import os
import pickle
import struct
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from stepscope.trace.pickles import NotPlainData, plain_data

PLAIN = {
    "texts": ["", "a", "ä" * 300, "\ud800", "x" * 70_000],
    "numbers": [0, -1, 255, 256, 65_536, -(2**31), 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 1.5, float("inf")],
    "others": (None, True, False, b"", b"abc", b"z" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)),
    "nested": [[[{1: {None: []}}]]],
    7: {},
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_data_comes_out_as_it_went_in(protocol: int) -> None:
    if protocol == 2:  # bytes are a call there
        assert plain_data(pickle.dumps({**PLAIN, "others": None}, protocol)) == {**PLAIN, "others": None}
    else:
        assert plain_data(pickle.dumps(PLAIN, protocol)) == PLAIN


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (str(self.path), os.O_CREAT | os.O_WRONLY)


def hostile(path: Path) -> dict[str, bytes]:
    """Return pickles that would create `path`, one per way to reach a call."""
    name = str(path).encode()
    arg = b"X" + struct.pack("<I", len(name)) + name
    create = b"K\x41"  # O_CREAT | O_WRONLY on Linux
    short = b"\x8c\x02os\x8c\x04open"
    return {
        "reduce": pickle.dumps({"entries": [Canary(path)]}, 4), "reduce 2": pickle.dumps([Canary(path)], 2),
        "GLOBAL": b"\x80\x02cos\nopen\n" + arg + create + b"\x86R.",
        "STACK_GLOBAL": b"\x80\x04" + short + b"\x93" + arg + create + b"\x86R.",
        "INST": b"\x80\x02(" + arg + create + b"ios\nopen\n.", "OBJ": b"\x80\x02(cos\nopen\n" + arg + create + b"o.",
        "NEWOBJ": b"\x80\x02cos\nopen\n" + arg + create + b"\x86\x81.",
        "NEWOBJ_EX": b"\x80\x04cos\nopen\n" + arg + create + b"\x86}\x92.", "BUILD": b"\x80\x02}}b.",
        "PERSID": b"\x80\x02Pos\n.", "BINPERSID": b"\x80\x02" + arg + b"Q.", "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x00.", "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "REDUCE alone": b"\x80\x02K\x01K\x02\x85R.", "class of the library": pickle.dumps(OrderedDict(a=1), 4),
        "protocol 0": b"cos\nsystem\n(S'touch " + name + b"'\ntR.",
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(hostile(Path("x"))))
def test_nothing_is_run(tmp_path: Path, kind: str) -> None:
    canary = tmp_path / "canary"
    with pytest.raises(NotPlainData):
        plain_data(hostile(canary)[kind])
    assert not canary.exists()


def test_canary_would_sing(tmp_path: Path) -> None:
    """The hostile pickles are what they claim to be: python's own reader creates the file."""
    canary = tmp_path / "canary"
    os.close(pickle.loads(hostile(canary)["STACK_GLOBAL"]))
    assert canary.exists()


BOMBS = {
    "memo": b"\x80\x02]r\xff\xff\xff\xff.", "long text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.",
    "text of 4 GB": b"\x80\x02X\xff\xff\xff\xffx.", "long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"K\x01.",
    "number": b"\x80\x02\x8b\xff\xff\xff\x7f" + b"\x01" * 100 + b".", "list in itself": b"\x80\x02]q\x00h\x00a.",
    "dict in itself": b"\x80\x02}q\x00K\x01h\x00s.", "list in its tuple": b"\x80\x02]q\x00h\x00\x85a.",
    "shared 100 deep": b"\x80\x04]\x94" + b"".join(b"h" + bytes([i]) + b"\x85\x94" for i in range(100)) + b".",
    "tuple as a key": b"\x80\x02}K\x01\x85K\x02s.", "list as a key": b"\x80\x02}]K\x02s.",
}  # fmt: skip


@pytest.mark.parametrize("kind", list(BOMBS))
def test_bombs_take_no_memory(kind: str) -> None:
    import tracemalloc

    tracemalloc.start()
    try:
        with pytest.raises(NotPlainData):
            plain_data(BOMBS[kind])
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
