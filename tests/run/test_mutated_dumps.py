"""Changed copies of dumps, snapshots and logs end in an answer or in our own error, whatever was changed."""

import json
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepscope.analyze.hang import hang_of
from stepscope.analyze.memory_snapshot import snapshot_view
from stepscope.document.hang import hang_json
from stepscope.document.live import memory_document
from stepscope.errors import InputError
from stepscope.run.dumps import read_dumps
from stepscope.trace.memory_snapshot import read_memory_snapshot
from stepscope.trace.nccl import inspected, nccl_logs

DATA = Path(__file__).parents[1] / "data"
TRIES = 150
ODD: tuple[Any, ...] = (None, -1, 0, 2**62, -(2**62), "", "x" * 300, [], {}, (), 1.5, float("nan"), True, [[]], b"\0")


def hang(path: Path) -> None:
    dumps = read_dumps([str(path)])
    json.dumps(hang_json(hang_of(dumps.by_rank), dumps))


def memory(path: Path) -> None:
    json.dumps(memory_document(None, {0: snapshot_view(read_memory_snapshot(path))}))


READERS: dict[str, tuple[Callable[[Path], None], str]] = {
    "nccl_trace_rank_0": (hang, "flight_recorder.dump"),
    "snapshot.pickle": (memory, "memory.pickle"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(READERS))
def test_changed_values(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    read, seed = READERS[name]
    for _ in range(TRIES):
        found = pickle.loads((DATA / "side_files" / seed).read_bytes())
        for _ in range(chance.randint(1, 5)):
            change(found, chance)
        (tmp_path / name).write_bytes(pickle.dumps(found, 4))
        with_own_error(read, tmp_path / name)


@pytest.mark.parametrize("name", list(READERS))
def test_changed_bytes(tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    read, seed = READERS[name]
    content = (DATA / "side_files" / seed).read_bytes()
    for _ in range(TRIES):
        (tmp_path / name).write_bytes(mutated(content, chance))
        with_own_error(read, tmp_path / name)


def test_changed_logs() -> None:
    chance = random.Random(5)
    content = (DATA / "nccl_logs" / "nccl_vm_1059.log").read_bytes()
    for _ in range(TRIES):
        lines = mutated(content, chance).splitlines(keepends=True)
        json.dumps([repr(log) for log in nccl_logs(lines)])
        inspected(lines)


def with_own_error(read: Callable[[Path], None], path: Path) -> None:
    try:
        read(path)
    except InputError as error:
        assert "\n" not in str(error)


def change(value: Any, chance: random.Random) -> None:
    """Put something odd somewhere below a dict or list."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if not isinstance(value[key], dict | list) or chance.random() < 0.1:
            value[key] = chance.choice(ODD)
            return
        value = value[key]


def mutated(content: bytes, chance: random.Random) -> bytes:
    bad = bytearray(content)
    for _ in range(chance.randint(1, 30)):
        at = chance.randrange(len(bad))
        if chance.random() < 0.2:
            del bad[at : at + chance.randint(1, 50)]
        else:
            bad[at] = chance.randrange(256)
    return bytes(bad)
