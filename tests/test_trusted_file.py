"""A cache of another user, or that another user could have changed, is as good as none; ours is for us alone."""

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.diagnose.late import late_run

from stepscope.cache_files import is_trusted_file, make_trusted_folder, open_trusted_file, write_trusted_file
from stepscope.cli.main import main
from stepscope.contract.run_folder import CACHE_FOLDER
from stepscope.document import cache as kept
from stepscope.side_file import RefusedFile
from stepscope.trace import cache

STRANGER = 12345


@pytest.fixture
def place(tmp_path: Path) -> Path:
    path = tmp_path / CACHE_FOLDER / "x"
    write_trusted_file(path, [b"a", b"b"])
    return path


@pytest.fixture
def permissive() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def give_away(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.usefixtures("permissive")
@pytest.mark.parametrize(("permissions", "folder"), [(0o600, 0o700), (0o644, 0o755)])
def test_only_the_owner_can_write_whatever_the_umask(tmp_path: Path, permissions: int, folder: int) -> None:
    path = tmp_path / "new" / "x"
    write_trusted_file(path, [b"a"], permissions=permissions)
    assert stat.S_IMODE(path.stat().st_mode) == permissions
    assert stat.S_IMODE(path.parent.stat().st_mode) == folder


@pytest.mark.parametrize(
    "change",
    [
        lambda path: path.chmod(0o620), lambda path: path.chmod(0o602), lambda path: path.parent.chmod(0o770),
        lambda path: path.parent.chmod(0o707), give_away, lambda path: give_away(path.parent),
    ],
)  # fmt: skip
def test_what_another_user_may_have_changed_is_refused(place: Path, change: Callable[[Path], None]) -> None:
    change(place)
    assert not is_trusted_file(place)
    with pytest.raises(RefusedFile), open_trusted_file(place):
        pass


def test_files_of_root_are_trusted_by_all(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root has files of root")
    place.chmod(0o644)
    monkeypatch.setattr("os.geteuid", lambda: STRANGER)
    assert is_trusted_file(place)


def test_a_sticky_folder_is_trusted_with_the_files_of_its_user(place: Path) -> None:
    place.parent.chmod(0o1777)
    assert is_trusted_file(place)
    give_away(place)
    assert not is_trusted_file(place)


def test_systems_without_numeric_users_check_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o666)
    monkeypatch.delattr("os.geteuid")
    assert is_trusted_file(place) and make_trusted_folder(place.parent)
    write_trusted_file(place, [b"c"])
    assert place.read_bytes() == b"c"


def test_a_folder_from_before_is_taken_back(place: Path) -> None:
    place.parent.chmod(0o775)
    assert not is_trusted_file(place)
    write_trusted_file(place, [b"c"])
    assert is_trusted_file(place) and stat.S_IMODE(place.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("change", [give_away, lambda folder: folder.chmod(0o777)])
def test_nothing_is_written_where_others_can_write(tmp_path: Path, change: Callable[[Path], None]) -> None:
    (folder := tmp_path / "given").mkdir()
    change(folder)
    write_trusted_file(folder / "x", [b"a"])
    assert not list(folder.iterdir())


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that runs every command that has a cache, on runs that count as large."""
    pytest.importorskip("pyarrow", reason="needs the extra `sql`")
    pytest.importorskip("duckdb", reason="needs the extra `sql`")
    monkeypatch.chdir(tmp_path)
    Path("runs/a").mkdir(parents=True)
    late_run(Path("runs/a"))
    shutil.copytree("runs/a", "runs/b")
    monkeypatch.setattr(kept, "MIN_RAW_BYTES", 1)
    monkeypatch.setattr(cache, "MIN_RAW_BYTES", 1)

    def run() -> None:
        for command in (
            ["report", "runs/a"],
            ["report", "runs/a", "--html", "a.html", "--force"],
            ["compare", "runs/a", "runs/b"],
            ["sql", "runs/a", "SELECT * FROM steps"],
            ["history", "runs"],
        ):
            assert main(command) == 0

    return run


def cached(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.parent.name == CACHE_FOLDER)


@pytest.mark.slow
@pytest.mark.usefixtures("permissive")
@pytest.mark.parametrize("change", [lambda path: path.chmod(0o666), give_away])
def test_every_cache_is_private_and_written_anew_where_it_is_not(commands, tmp_path, change):
    commands()
    files = cached(tmp_path)
    endings = {path.suffix for path in files}
    assert endings == {".columns", ".report", ".page", ".compared", ".tables", ".parquet", ".jsonl"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}
    before = [path.stat().st_ino for path in files]
    commands()
    assert [path.stat().st_ino for path in files] == before
    for path in files:
        change(path)
    commands()
    assert all(is_trusted_file(path) for path in files)


@pytest.mark.slow
def test_runs_whose_caches_are_private_are_read_by_others(commands: Callable[[], None], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    commands()
    for folder in (tmp_path, tmp_path.parent, tmp_path.parents[1]):
        folder.chmod(0o755)
    os.seteuid(STRANGER)
    try:
        for command in ("report", "runs/a"), ("history", "runs"), ("sql", "runs/a", "SELECT * FROM steps"):
            assert main(list(command)) == 0
    finally:
        os.seteuid(0)
