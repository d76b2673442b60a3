"""Files at addresses, copied into a private folder of this machine for as long as they are needed.

    s3://bucket/runs/monday  ->  /tmp/stepscope-remote-k2j4/0/monday/rank00000.pt.trace.json.gz, ...

The copy has the name of what it was made from, so that a report of it is the same; `shown` turns its path back into the
address. From there on it is read like any other run, with the same checks.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from stepscope.contract.redaction import shown_address
from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.run.load import Run
from stepscope.run.remote.address import base_name, is_address
from stepscope.run.remote.objects import RemoteFile, Room, copy_file, files_at

_AT_ONCE = 8
"""files copied at once: most of the time is waiting"""
_KEPT_FREE_BYTES = 1 << 30
"""of the disk, for everybody else"""
CopyProgress = Callable[[int, int], None]
"""Called with files copied so far and files in all."""


@dataclass(frozen=True)
class Copies:
    """What stands for the names that were given, and which addresses they are copies of."""

    paths: tuple[str, ...]
    """a path for each name: the copy of an address, or the name itself"""
    made_from: tuple[tuple[str, str], ...] = ()
    """(path, address) of each copy"""

    def shown(self, text: str) -> str:
        """Return a text with addresses in place of the copies' paths."""
        for path, address in self.made_from:
            text = text.replace(path, address)
        return text


def named_as_given(run: Run, copies: Copies) -> Run:
    """Return a run that was read from copies and speaks of the addresses they were made from."""
    if not copies.made_from:
        return run
    return replace(
        run,
        shown_path=copies.shown,
        unreadable=tuple(map(copies.shown, run.unreadable)),
        warnings=tuple(map(copies.shown, run.warnings)),
    )


def copies_kept(given: Sequence[str]) -> tuple[Copies, Callable[[], None]]:
    """Return copies that stay until the function beside them is called."""
    with ExitStack() as until:
        copies = until.enter_context(local_copies(given))
        return copies, until.pop_all().close


@contextmanager
def local_copies(
    given: Sequence[str], *, wanted: Callable[[str], bool] | None = None, progress: CopyProgress | None = None
) -> Iterator[Copies]:
    """Give paths for the names in `given`, each address copied here until the end; `wanted` chooses by file name."""
    if not any(map(is_address, given)):
        yield Copies(tuple(given))
        return
    scratch = Path(tempfile.mkdtemp(prefix="stepscope-remote-"))
    try:
        room = Room(max(0, shutil.disk_usage(scratch).free - _KEPT_FREE_BYTES))
        made = [
            (_copy(one, scratch / str(n), room, wanted, progress), one) if is_address(one) else (one, None)
            for n, one in enumerate(given)
        ]
        yield Copies(
            tuple(path for path, _ in made),
            tuple((path, shown_address(address).rstrip("/")) for path, address in made if address is not None),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _copy(
    address: str, parent: Path, room: Room, wanted: Callable[[str], bool] | None, progress: CopyProgress | None
) -> str:
    """Return the path of the copy of a file, of the files of a glob, or of a folder."""
    found = files_at(address)
    files = [one for one in found if wanted is None or wanted(one.name[-1])]
    if not files:
        raise InputError(f"no files at {shown_address(address)}; give a run folder, a trace or a glob of traces")
    room.expect(sum(one.size_bytes or 0 for one in files))
    alone = len(files) == 1 and files[0].name == (base_name(address),)
    folder = parent if alone else parent / base_name(address)
    for below in {folder.joinpath(*one.name[:-1]) for one in files}:
        below.mkdir(parents=True, exist_ok=True)
    _copy_all(address, files, folder, room, progress)
    return str(folder / files[0].name[-1] if alone else folder)


def _copy_all(
    address: str, files: Sequence[RemoteFile], folder: Path, room: Room, progress: CopyProgress | None
) -> None:
    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        copied = pool.map(lambda one: copy_file(address, one, folder.joinpath(*one.name), room), files)
        try:
            for number, _ in enumerate(copied, 1):
                if progress:
                    progress(number, len(files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
