"""Outputs appear whole, never over what exists, never through a link (Y7)."""

from pathlib import Path

import pytest

from stepscope.cli.output import check_outputs, made_folder, refuse_used_folder, write_output
from stepscope.errors import UsageError


def test_dash_is_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    write_output("-", "text", force=False)
    assert capsys.readouterr().out == "text"


def test_new_file_is_written(tmp_path: Path) -> None:
    write_output(str(tmp_path / "out.json"), "κ", force=False)
    assert (tmp_path / "out.json").read_text(encoding="utf-8") == "κ"


def test_existing_file_is_kept_without_force(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")
    with pytest.raises(UsageError, match="found it exists; use --force"):
        write_output(str(target), "new", force=False)
    assert target.read_text() == "old"
    write_output(str(target), "new", force=True)
    assert target.read_text() == "new"


@pytest.mark.parametrize("dangling", [False, True])
def test_link_is_never_followed(tmp_path: Path, dangling: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    if not dangling:
        elsewhere.write_text("keep")
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    with pytest.raises(UsageError):
        write_output(str(link), "new", force=False)
    write_output(str(link), "new", force=True)
    assert not link.is_symlink()
    assert link.read_text() == "new"
    assert elsewhere.exists() != dangling
    assert dangling or elsewhere.read_text() == "keep"


def test_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="found a folder"):
        write_output(str(tmp_path), "new", force=True)


def test_place_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file or directory"):
        write_output(str(tmp_path / "nowhere" / "out.json"), "new", force=False)


def test_full_disk_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out.json"
    target.write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("stepscope.run_folder.os.fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_output(str(target), "new", force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["out.json"]
    assert target.read_text() == "old"


def test_text_that_has_no_encoding_is_still_written(tmp_path: Path) -> None:
    write_output(str(tmp_path / "out.html"), "a\ud800b", force=False)
    assert (tmp_path / "out.html").read_bytes() == b"a?b"


def test_outputs_are_checked_before_the_work(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("old")
    check_outputs(None, "-", str(tmp_path / "new.json"), force=False)
    check_outputs(str(old), force=True)
    for path, said in (
        (old, "found it exists"),
        (tmp_path, "found a folder"),
        (tmp_path / "nowhere" / "x.json", "no folder at"),
        (old / "x.json", "no folder at"),
    ):
        with pytest.raises(UsageError, match=said):
            check_outputs(None, str(path), force=False)
    with pytest.raises(UsageError, match="twice"):
        check_outputs("-", "-", force=True)


def test_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.cli.output.os.access", lambda *_: False)
    with pytest.raises(UsageError, match="cannot be written"):
        check_outputs(str(tmp_path / "x.json"), force=False)


def test_folder_is_made_and_one_in_use_is_kept(tmp_path: Path) -> None:
    refuse_used_folder(str(tmp_path / "a" / "b"), force=False)
    folder = made_folder(str(tmp_path / "a" / "b"))
    refuse_used_folder(str(folder), force=False)
    (folder / "old").write_text("keep")
    with pytest.raises(UsageError, match="expected a new or empty folder"):
        refuse_used_folder(str(folder), force=False)
    refuse_used_folder(str(folder), force=True)
    with pytest.raises(UsageError, match="found a file"):
        refuse_used_folder(str(folder / "old"), force=True)
    with pytest.raises(UsageError, match="cannot write"):
        made_folder(str(folder / "old" / "below"))
