"""Names in a run folder go out and come back; files appear whole or not at all."""

import os
from pathlib import Path

import pytest

from stepscope.contract.run_folder import (
    atomic_write,
    rank_file,
    rank_of,
    steps_file,
    trace_file,
)
from stepscope.output_path import OutputRefusedError


@pytest.mark.parametrize("rank", [0, 7, 12345, 99999, 100000])
def test_rank_of_a_name_is_the_rank_it_was_made_with(rank: int) -> None:
    for name in (trace_file(rank), steps_file(rank), rank_file(rank, "memory.pickle")):
        assert rank_of(name) == rank


def test_file_appears_only_when_all_was_written(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    with atomic_write(target) as f:
        f.write(b"new")
        assert not target.exists()
    assert target.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["out.json"]


def test_old_file_stays_where_writing_fails(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), atomic_write(target) as f:
        f.write(b"half")
        raise KeyboardInterrupt
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.json"]


def test_link_is_neither_replaced_nor_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"keep")
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    with pytest.raises(OutputRefusedError, match="it is a link"), atomic_write(link) as f:
        f.write(b"new")
    assert elsewhere.read_bytes() == b"keep"
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["elsewhere", "link"]
