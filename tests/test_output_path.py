"""What may be written where: regular files and new ones, not behind a link that belongs to somebody else."""

import ast
import os
from pathlib import Path

import pytest
from tests.source_trees import desk_calls

from stepscope.errors import UsageError
from stepscope.output_path import (
    OutputRefusedError,
    opened_to_grow,
    refuse_output,
    why_no_file,
    why_no_folder,
    why_no_output,
)
from stepscope.record.helper.claim import claim_folder
from stepscope.record.launch.launch import why_not_writable

STRANGER = 54321


def link_of_a_stranger(link: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a link that somebody else owns: really, or to whoever we say we are."""
    link.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(link, STRANGER, STRANGER)
    else:
        monkeypatch.setattr("stepscope.output_path.os.geteuid", lambda: STRANGER)
    return link


def test_regular_and_new_files_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    for name in ("old", "new", "old/below", "no/such/folder"):
        assert why_no_output(tmp_path / name) is None


def test_other_kinds_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    assert "a named pipe" in str(why_no_file(tmp_path / "pipe"))
    assert "a link" in str(why_no_file(tmp_path / "link"))
    assert "a folder" in str(why_no_file(tmp_path))
    assert "a device" in str(why_no_file("/dev/null"))
    with pytest.raises(OutputRefusedError) as refused:
        refuse_output(tmp_path / "pipe")
    assert isinstance(refused.value, OSError) and "a named pipe" in str(refused.value.strerror)


def test_file_that_grows_is_seen_line_by_line_and_nothing_else_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with opened_to_grow(tmp_path / "old") as file:
        for number in range(3):
            file.write(b"line\n")
            assert (tmp_path / "old").read_bytes() == b"line\n" * (number + 1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("old")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError):
            opened_to_grow(tmp_path / name)
    assert (tmp_path / "old").read_bytes() == b"line\n" * 3


def test_own_links_to_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mine").symlink_to("real")
    (tmp_path / "again").symlink_to(tmp_path / "mine")
    assert why_no_output(tmp_path / "again" / "out.json") is None
    assert why_no_folder(tmp_path / "again" / ".." / "real") is None


@pytest.mark.parametrize("way", ["theirs", "theirs/below", "mine", "mine/below/../x", "real/../theirs"])
def test_links_of_others_on_the_way_are_refused(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    theirs = link_of_a_stranger(tmp_path / "theirs", tmp_path / "real", monkeypatch)
    (tmp_path / "mine").symlink_to("theirs")  # our link, to theirs
    if os.geteuid() == STRANGER and way.startswith("mine"):
        pytest.skip("every link is a stranger's to whoever we pretend to be")
    why_not = why_no_output(tmp_path / way / "out.json")
    assert why_not == f"{theirs} is a link that belongs to another user"
    with pytest.raises(UsageError, match="belongs to another user"):
        claim_folder(tmp_path / way, run_id="x")
    assert "belongs to another user" in str(why_not_writable(str(tmp_path / way)))
    assert list((tmp_path / "real").iterdir()) == []


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in str(why_no_folder(tmp_path / "a" / "x"))


IN_A_FOLDER_OF_ITS_OWN = {"cli/doctor.py", "cli/export.py", "cli/view.py"}
"""which write into a temporary folder that they have just made"""


def calls(*endings: str) -> list[tuple[str, ast.Call]]:
    """Return the calls on the desk side that end in one of these, each with its file."""
    return [(path, node) for path, called, node in desk_calls() if called.endswith(endings)]


def test_no_output_is_written_past_the_door() -> None:
    writing = (".write_text", ".write_bytes", ".tofile", "np.save", "shutil.copyfile", "shutil.move", "os.replace")
    assert {file for file, _ in calls(*writing)} == IN_A_FOLDER_OF_ITS_OWN
    assert {file for file, _ in calls("atomic_write")} >= {"cli/output.py", "cli/investigate.py", "trusted_file.py"}


def test_no_json_of_ours_can_hold_what_is_no_json() -> None:
    found = [(file, {word.arg for word in call.keywords}) for file, call in calls("json.dumps", "json.dump")]
    assert {file for file, words in found if "allow_nan" not in words} == {
        "trace/cache.py",
        "trace/pickles.py",
    }, "which nobody else reads"
    assert {file for file, _ in found} >= {"json_text.py"}
