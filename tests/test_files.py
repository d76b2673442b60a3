"""Files beside the traces and outputs: only regular ones of bounded size, not behind a link of somebody else."""

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.source_trees import desk_calls
from tests.trace.test_reading_faults import SAMPLE

from stepscope import cache_files, side_file
from stepscope.contract.run_folder import json_object_in
from stepscope.errors import UsageError
from stepscope.record.helper.claim import claim_folder
from stepscope.record.launch.launch import why_not_writable
from stepscope.trace.cache import read_cached


def test_pipe_device_and_folder_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(side_file.RefusedFile, match="instead of a regular file"):
            side_file.read_side_file(path)
        with pytest.raises(side_file.RefusedFile):
            next(side_file.side_file_lines(path))
        assert json_object_in(path) == {}


def test_sparse_file_is_refused_by_its_size(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as f:
        f.truncate(side_file.MAX_BYTES + 1)
    with pytest.raises(side_file.RefusedFile, match="where at most"):
        side_file.read_side_file(tmp_path / "run.json")


def test_overlong_line_is_one_damaged_line(tmp_path: Path) -> None:
    (path := tmp_path / "log").write_bytes(b"1\n" + b"x" * (3 * side_file.MAX_LINE_BYTES) + b"\n2\n")
    assert list(side_file.side_file_lines(path)) == [b"1\n", side_file.OVERLONG, b"2\n"]


@pytest.mark.parametrize(
    "text", ["1e999", "-1e999", "NaN", "Infinity", "-Infinity", "9" * 400, "-" + "9" * 5000, str(2**63), "1" + "0" * 19]
)
def test_number_that_nothing_holds_is_unknown_and_named(text: str) -> None:
    parsed = side_file.parsed_json(f'{{"good": 1, "ranks": {{"0": [{text}]}}}}')
    assert parsed.value == {"good": 1, "ranks": {"0": [None]}}
    assert side_file.unusable_fields(parsed, "run.json") == [
        "run.json: ranks.0.0 out of range or no finite number; taken as unknown"
    ]


DOORS = {"side_file.py", "trace/streams.py", "report/view/server.py", "run/remote.py"}
"""where files that anybody may have written are opened, each after a look at what they are"""
OWN_FILES = {
    "cli/main.py", "cli/investigate.py", "cost/chips.py", "cli/demo.py", "cli/view.py", "trace/scanner/__init__.py",
}  # fmt: skip
"""which open what the program itself brings or has just made"""


@pytest.mark.slow
def test_no_file_is_opened_past_the_doors() -> None:
    found = {f"{path}:{node.lineno}" for path, called, node in desk_calls() if _opens(called)}
    assert len(desk_calls()) > 5_000
    assert not {place for place in found if place.partition(":")[0] not in DOORS | OWN_FILES}


def _opens(called: str) -> bool:
    """Return whether a call opens a file by its path; `files(...)` are the package's own."""
    return called in ("open", "os.open", "np.load", "np.fromfile") or (
        called.endswith((".read_text", ".read_bytes", ".open")) and not called.startswith("files(")
    )


def test_values_nested_too_deeply_are_no_json_whatever_python_bears() -> None:
    side_file.parsed_json("[" * side_file.MAX_DEPTH + "]" * side_file.MAX_DEPTH)
    side_file.parsed_json("[" + ", ".join(["[1]"] * 500) + "]")
    for text in (
        "[" * (side_file.MAX_DEPTH + 2) + "]" * (side_file.MAX_DEPTH + 2),
        '{"a":' * 500 + "1e999" + "}" * 500,
    ):
        with pytest.raises(ValueError, match="nested too deeply"):
            side_file.parsed_json(text)


STRANGER = 54321


def link_of_a_stranger(link: Path, target: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a link that somebody else owns: really, or to whoever we say we are."""
    link.symlink_to(target)
    if os.geteuid() == 0:
        os.lchown(link, STRANGER, STRANGER)
    else:
        monkeypatch.setattr("stepscope.side_file.os.geteuid", lambda: STRANGER)
    return link


def test_file_that_grows_is_seen_line_by_line_and_nothing_else_is_written_to(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    with side_file.opened_to_grow(tmp_path / "old") as file:
        for number in range(3):
            file.write(b"line\n")
            assert (tmp_path / "old").read_bytes() == b"line\n" * (number + 1)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("old")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError):
            side_file.opened_to_grow(tmp_path / name)
    assert (tmp_path / "old").read_bytes() == b"line\n" * 3


def test_own_links_to_folders_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mine").symlink_to("real")
    (tmp_path / "again").symlink_to(tmp_path / "mine")
    assert side_file.why_no_output(tmp_path / "again" / "out.json") is None
    assert side_file.why_no_folder(tmp_path / "again" / ".." / "real") is None


@pytest.mark.parametrize("way", ["theirs", "theirs/below", "mine", "mine/below/../x", "real/../theirs"])
def test_links_of_others_on_the_way_are_refused(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    theirs = link_of_a_stranger(tmp_path / "theirs", tmp_path / "real", monkeypatch)
    (tmp_path / "mine").symlink_to("theirs")  # our link, to theirs
    if os.geteuid() == STRANGER and way.startswith("mine"):
        pytest.skip("every link is a stranger's to whoever we pretend to be")
    why_not = side_file.why_no_output(tmp_path / way / "out.json")
    assert why_not == f"{theirs} is a link that belongs to another user"
    with pytest.raises(UsageError, match="belongs to another user"):
        claim_folder(tmp_path / way, run_id="x")
    assert "belongs to another user" in str(why_not_writable(str(tmp_path / way)))
    assert list((tmp_path / "real").iterdir()) == []


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert "too many links" in str(side_file.why_no_folder(tmp_path / "a" / "x"))


IN_A_FOLDER_OF_ITS_OWN = {"cli/doctor.py", "cli/view.py", "lab/toolkit.py"}
"""which write into a temporary folder that they have just made"""


def calls(*endings: str) -> list[tuple[str, ast.Call]]:
    """Return the calls on the desk side that end in one of these, each with its file."""
    return [(path, node) for path, called, node in desk_calls() if called.endswith(endings)]


@pytest.mark.slow
def test_no_output_is_written_past_the_door() -> None:
    writing = (".write_text", ".write_bytes", ".tofile", "np.save", "shutil.copyfile", "shutil.move", "os.replace")
    assert {file for file, _ in calls(*writing)} == IN_A_FOLDER_OF_ITS_OWN
    assert {file for file, _ in calls("atomic_write")} >= {"cli/outputs.py", "cache_files.py"}


@pytest.mark.slow
def test_no_json_of_ours_can_hold_what_is_no_json() -> None:
    found = [(file, {word.arg for word in call.keywords}) for file, call in calls("json.dumps", "json.dump")]
    assert {file for file, words in found if "allow_nan" not in words} == {"trace/cache.py", "trace/pickles.py"}, (
        "which nobody else reads"
    )
    assert {file for file, _ in found} >= {"units.py"}


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    cache_files.wait_for_all()


def test_what_goes_wrong_is_raised_where_it_is_waited_for(tmp_path: Path) -> None:
    def write() -> None:
        raise ValueError("no")

    cache_files.write_later(tmp_path / "a", write)
    with pytest.raises(ValueError, match="no"):
        cache_files.wait_for(tmp_path / "a")


def test_next_reader_in_a_process_finds_the_cache_that_was_to_be_written(tmp_path: Path) -> None:
    first = read_cached(SAMPLE, cache_folder=tmp_path, min_raw_bytes=0, write_later=cache_files.write_later)
    assert not first.from_cache and not list(tmp_path.iterdir())
    assert read_cached(SAMPLE, cache_folder=tmp_path, min_raw_bytes=0).from_cache
