"""Outputs appear whole, never over what exists, never through a link; what exists is refused before any work."""

import json
import os
import socket
import stat
from pathlib import Path

import pytest

from stepscope.cli.main import main
from stepscope.cli.outputs import check_outputs, make_folder, refuse_used_folder, write_json, write_output
from stepscope.errors import UsageError


@pytest.mark.parametrize("dangling", [False, True])
def test_link_is_never_followed(tmp_path: Path, dangling: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        elsewhere.write_text("keep")
    (link := tmp_path / "link").symlink_to(elsewhere)
    for force in (False, True):
        with pytest.raises(UsageError, match="it is a link, not a regular file; give another name"):
            write_output(str(link), "new", force=force)
    assert link.is_symlink()
    assert elsewhere.exists() != dangling
    assert dangling or elsewhere.read_text() == "keep"


def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (target := tmp_path / "out.json").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.contract.run_folder.os.fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_output(str(target), "new", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    assert target.read_text() == "old"


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    (old := tmp_path / "old.json").write_text("old")
    check_outputs(None, "-", str(tmp_path / "new.json"), force=False)
    check_outputs(str(old), force=True)
    for path, said in (
        (old, "already exists"),
        (tmp_path, "it is a folder"),
        (tmp_path / "nowhere" / "x.json", "no folder at"),
        (old / "x.json", "no folder at"),
    ):
        with pytest.raises(UsageError, match=said):
            check_outputs(None, str(path), force=False)
    with pytest.raises(UsageError, match="two outputs have the name"):
        check_outputs("-", "-", force=True)


def test_folder_is_made_and_one_in_use_is_kept(tmp_path: Path) -> None:
    refuse_used_folder(str(tmp_path / "a" / "b"), force=False)
    folder = make_folder(str(tmp_path / "a" / "b"))
    refuse_used_folder(str(folder), force=False)
    (folder / "old").write_text("keep")
    with pytest.raises(UsageError, match="is not empty; use --force"):
        refuse_used_folder(str(folder), force=False)
    refuse_used_folder(str(folder), force=True)
    with pytest.raises(UsageError, match="is a file, not a folder"):
        refuse_used_folder(str(folder / "old"), force=True)
    with pytest.raises(UsageError, match="cannot write"):
        make_folder(str(folder / "old" / "below"))


def make(kind: str, place: Path) -> None:
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        here = os.open(".", os.O_RDONLY)
        os.chdir(place.parent)  # the address of a socket must be short
        try:
            socket.socket(socket.AF_UNIX).bind(place.name)
        finally:
            os.fchdir(here)
            os.close(here)
    elif kind == "folder":
        place.mkdir()
    elif kind == "link":
        place.symlink_to(place.with_name("elsewhere"))
    else:
        try:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except OSError:
            pytest.skip("only root makes devices")


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["pipe", "socket", "folder", "link", "device"])
def test_what_is_no_regular_file_is_refused_and_untouched(kind: str, force: bool, tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    make(kind, place)
    before = os.lstat(place)
    for refused in (
        lambda: check_outputs(str(place), force=force),
        lambda: write_output(str(place), "new", force=force),
        lambda: write_json(str(place), {}, force=force),
    ):
        with pytest.raises(UsageError, match="not a regular file") as said:
            refused()
        assert "--force" not in str(said.value)
    after = os.lstat(place)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (before.st_ino, before.st_mode, before.st_mtime_ns)
    assert os.listdir(tmp_path) == ["out.json"]


def test_numbers_that_are_not_finite_are_null_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = {"step": {"ms": [1.0, float("inf")], "x": float("nan")}, "warnings": ["other"]}
    write_json(str(tmp_path / "out.json"), document, force=False)
    found = json.loads((tmp_path / "out.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    note = "step.ms.1, step.x: the numbers were not finite, so they are left unknown"
    assert found == {"step": {"ms": [1.0, None], "x": None}, "warnings": ["other", note]}
    assert capsys.readouterr().err == f"warning: {note}\n"
    assert document["warnings"] == ["other"]


COMMANDS = {
    "report": ["no-such-run"], "whatif": ["no-such-run", "--set", "straggler=off"], "code": ["no-such-run"],
    "compare": ["no-such-run", "no-other-run"], "health": ["no-such-run"], "history": ["no-such-folder"],
    "job": ["no-such-run"], "investigate": ["no-such-run"], "calibrate": ["--from-csv", "no-such-file.csv"],
    "sql": ["no-such-run", "select 1"],
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_existing_output_is_refused_before_the_input_is_looked_at(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (there := tmp_path / "result.json").write_text("mine")
    assert main([command, *COMMANDS[command], "--json", str(there)]) == 2
    said = capsys.readouterr().err
    assert "exists" in said and "--force" in said
    assert there.read_text() == "mine"
