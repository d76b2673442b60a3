"""Files at addresses: only what is asked for, within bounds, and never a name that leads elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec")

from stepscope.errors import InputError, UsageError  # noqa: E402
from stepscope.run.remote import (  # noqa: E402
    ByteBudget,
    RemoteFile,
    copy_file,
    files_at,
    local_copies,
    write_object,
)


@pytest.fixture
def bucket() -> Iterator[Any]:
    fs = fsspec.filesystem("memory")
    fs.pipe("/runs/a/rank0.json", b"{}")
    fs.pipe("/runs/a/rank_1/deep/trace.json", b"[]")
    fs.pipe("/runs/a/.stepscope/cache", b"x")
    yield fs
    fs.rm("/runs", recursive=True)


def test_folder_file_and_glob(bucket: Any) -> None:
    assert [one.name for one in files_at("memory://runs/a")] == [("rank0.json",), ("rank_1", "deep", "trace.json")]
    assert [one.name for one in files_at("memory://runs/a/rank0.json")] == [("rank0.json",)]
    assert [one.name for one in files_at("memory://runs/a/rank*.json")] == [("rank0.json",)]


def test_copies_are_gone_afterwards_and_have_the_same_names(bucket: Any) -> None:
    with local_copies(["memory://runs/a", "here"]) as copies:
        folder = Path(copies.paths[0])
        assert folder.name == "a" and copies.paths[1] == "here"
        assert (folder / "rank_1" / "deep" / "trace.json").read_bytes() == b"[]"
        assert folder.parent.parent.stat().st_mode & 0o077 == 0
        assert copies.shown(f"{folder}/rank0.json is bad") == "memory://runs/a/rank0.json is bad"
    assert not folder.parent.parent.exists()


def test_nothing_there_is_one_sentence() -> None:
    with pytest.raises(InputError, match=r"memory://nowhere/x\.json does not exist; check"):
        files_at("memory://nowhere/x.json")


def test_a_copy_ends_where_there_is_no_room(bucket: Any, tmp_path: Path) -> None:
    bucket.pipe("/runs/big", b"x" * 5_000_000)
    with pytest.raises(InputError, match="temporary folder"):
        copy_file("memory://runs/big", RemoteFile("/runs/big", ("big",), 1), tmp_path / "big", ByteBudget(2_000_000))
    assert (tmp_path / "big").stat().st_size <= 2_000_000
    with pytest.raises(InputError, match="temporary folder"):
        ByteBudget(10).expect(11)


@pytest.mark.parametrize("name", ["..", ".", "a\\b", "a\x00b", "a\nb", "x" * 256])
def test_names_that_lead_elsewhere_are_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fs = fsspec.filesystem("memory")
    listed = [{"name": f"/evil/{name}", "type": "file", "size": 1}, {"name": "/evil/ok", "type": "file", "size": 1}]
    monkeypatch.setattr(type(fs), "isdir", lambda *_: True)
    monkeypatch.setattr(type(fs), "ls", lambda *_, **__: listed)
    assert [one.name for one in files_at("memory://evil")] == [("ok",)]


def test_half_of_an_output_is_none(bucket: Any) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"half"
        raise UsageError("no more")

    with pytest.raises(UsageError, match="no more"):
        write_object("memory://runs/out.json", pieces(), force=False)
    assert not bucket.exists("/runs/out.json")
    assert write_object("memory://runs/out.json", [b"a", b"bc"], force=False) == 3
    with pytest.raises(UsageError, match="already exists; use --force"):
        write_object("memory://runs/out.json", [b"new"], force=False)
    assert bucket.cat("/runs/out.json") == b"abc"
    with pytest.raises(UsageError, match="it is a folder"):
        write_object("memory://runs", [b"new"], force=True)
    with pytest.raises(UsageError, match="takes no files"):
        write_object("http://127.0.0.1:9/x", [b"new"], force=True)
