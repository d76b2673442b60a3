"""The files at an address: listed, copied here, written there. The only place with network access.

The other side is not trusted: names that lead out of the folder are left out, a copy is limited to the free space,
a page that lists files is read up to a limit. Errors of libraries become one sentence.
"""

import os
import posixpath
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

from stepscope.contract.redaction import shown_address
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.records import dataclass
from stepscope.run.address import SCHEMES, base_name, is_address, is_web, scheme_of
from stepscope.run.load import Run
from stepscope.units import printable

_MAX_FILES = 100_000
# folders in folders below the address
_MAX_LEVELS = 4
# of a web page that lists files
_MAX_PAGE_BYTES = 8 << 20
_CONNECT_S, _READ_S = 30, 120
_SAFE_NAME = re.compile(r"^[^/\\\x00-\x1f]{1,255}$")
_MAX_REASON = 200


class RemoteFile(NamedTuple):
    """One file at an address."""

    #: as its file system names it
    place: str
    #: below the address, folder by folder
    name: tuple[str, ...]
    size_bytes: int | None


class ByteBudget:
    """The bytes that copies may take together; shared by all threads that copy."""

    def __init__(self, free_bytes: int) -> None:
        self._left_bytes = free_bytes
        self._lock = Lock()

    def take(self, size_bytes: int) -> None:
        with self._lock:
            self._left_bytes -= size_bytes
            left_bytes = self._left_bytes
        if left_bytes < 0:
            raise InputError("more than fits in the temporary folder; set TMPDIR to a larger one, or name fewer files")

    def expect(self, size_bytes: int) -> None:
        """Raise where as much will not fit, before anything is copied."""
        self.take(size_bytes)
        with self._lock:
            self._left_bytes += size_bytes


def files_at(address: str) -> list[RemoteFile]:
    """Return the file at an address, those that a glob matches, or all in a folder, four levels deep."""
    with _open_filesystem(address) as fs:
        place = fs._strip_protocol(address)
        if is_web(address):
            is_listing = "." not in urlsplit(address).path.rpartition("/")[2]
            found = _on_web(fs, address) if is_listing else [RemoteFile(place, (_last(place),), None)]
        elif re.search(r"[*\[]", address):
            found = [
                _file(p, (_last(p),), info)
                for p, info in fs.glob(place, detail=True).items()
                if info.get("type") == "file"
            ]
        elif fs.isdir(place):
            found = list(_below(fs, place))
        else:
            found = [_file(place, (_last(place),), fs.info(place))]
    safe = [one for one in found if all(map(_is_safe, one.name))]
    if len(safe) > _MAX_FILES:
        raise InputError(f"more than {_MAX_FILES:,} files at {shown_address(address)}; give the folder of one run")
    return sorted(safe, key=lambda one: one.name)


def copy_file(address: str, file: RemoteFile, target: Path, room: ByteBudget) -> None:
    """Copy one file of an address to a new file here, no further than there is room."""
    with _open_filesystem(address) as fs, _opened(fs, address, file.place) as source, target.open("xb") as out:
        while piece := source.read(1 << 20):
            room.take(len(piece))
            out.write(piece)


def refuse_object(address: str, *, force: bool) -> None:
    """Raise if an object exists at `address` and must not be overwritten."""
    if is_web(address):
        raise UsageError(f"cannot write {shown_address(address)}: a web server takes no files; give a path or a bucket")
    with _open_filesystem(address) as fs:
        place = fs._strip_protocol(address)
        if address.endswith("/") or fs.isdir(place):
            raise UsageError(f"cannot write {shown_address(address)}: it is a folder; give a file name in it")
        if not force and fs.exists(place):
            raise UsageError(f"{shown_address(address)} already exists; use --force")


def write_object(address: str, pieces: Iterable[bytes], *, force: bool) -> int:
    """Write bytes to an address and return how many they are; nothing is sent before all of them are there."""
    with tempfile.NamedTemporaryFile(prefix="stepscope-remote-") as out:
        written = sum(map(out.write, pieces))
        out.flush()
        refuse_object(address, force=force)
        with _open_filesystem(address) as fs:
            fs.put_file(out.name, fs._strip_protocol(address))
    return written


@contextmanager
def _open_filesystem(address: str) -> Iterator[Any]:
    try:
        yield _file_system(address)
    except StepscopeError:
        raise
    except Exception as error:
        if isinstance(error.__cause__, StepscopeError):  # ours, which the library took for a missing file
            raise error.__cause__ from None
        why = printable(str(error) or type(error).__name__, width=_MAX_REASON).replace(address, shown_address(address))
        missing = isinstance(error, FileNotFoundError)
        what = f"{shown_address(address)} does not exist" if missing else f"{shown_address(address)}: {why}"
        raise InputError(f"{what}; check the address, and that you may use it") from error


def _file_system(address: str) -> Any:
    scheme = scheme_of(address)
    if "::" in address or scheme not in SCHEMES:
        raise UsageError(
            f"cannot use {printable(shown_address(address))}: give a path, or an address that begins with "
            f"{', '.join(f'{one}://' for one in SCHEMES)}"
        )
    try:
        options = {"client_kwargs": _web_client()} if is_web(address) else {}
        return import_module("fsspec").filesystem(scheme, **options)
    except ImportError as error:
        needed = {"fsspec": "stepscope[remote]", "aiohttp": "stepscope[remote]"}
        package = SCHEMES[scheme] if error.name != "fsspec" else "fsspec"
        raise UsageError(f"{scheme}:// needs {package}; pip install {needed.get(package, package)!r}") from error


@cache
def _web_client() -> dict[str, Any]:
    aiohttp = import_module("aiohttp")
    watch = aiohttp.TraceConfig()
    watch.on_request_redirect.append(_refuse_other_origin)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_READ_S)
    return {"timeout": timeout, "trace_configs": [watch]}


async def _refuse_other_origin(_session: Any, _context: Any, redirect: Any) -> None:
    headers = redirect.response.headers
    target = redirect.url.join(type(redirect.url)(headers.get("Location") or headers.get("URI") or ""))
    if target.origin() != redirect.url.origin():
        here, there = (printable(shown_address(str(url)), width=_MAX_REASON) for url in (redirect.url, target))
        raise InputError(f"{here} redirects to another server, {there}; if you trust it, give that address")


def _opened(fs: Any, address: str, place: str) -> Any:
    return fs.open(place, block_size=0) if is_web(address) else fs.open(place)


def _below(fs: Any, place: str) -> Iterator[RemoteFile]:
    root, level = place.rstrip("/"), [place]
    for _ in range(_MAX_LEVELS):
        entries = [entry for folder in level for entry in fs.ls(folder, detail=True)]
        level = []
        for entry in entries:
            name = posixpath.relpath(entry["name"], root)
            if entry.get("type") == "file":
                yield _file(entry["name"], tuple(name.split("/")), entry)
            elif not name.rpartition("/")[2].startswith(".") and name != ".":
                level.append(entry["name"])
        if len(level) > _MAX_FILES:
            return


def _file(place: str, name: tuple[str, ...], info: dict[str, Any]) -> RemoteFile:
    size = info.get("size")
    return RemoteFile(place, name, size if isinstance(size, int) and size >= 0 else None)


def _is_safe(name: str) -> bool:
    return _SAFE_NAME.match(name) is not None and name not in (".", "..") and len(os.fsencode(name)) <= 255


def _last(place: str) -> str:
    return unquote(urlsplit(place).path.rpartition("/")[2]) if is_web(place) else place.rpartition("/")[2]


def _on_web(fs: Any, address: str) -> list[RemoteFile]:
    page = address if urlsplit(address).path.endswith("/") else f"{address}/"
    with _opened(fs, page, page) as source:
        text = source.read(_MAX_PAGE_BYTES).decode(errors="replace")
    links = _Links()
    links.feed(text)
    found = dict.fromkeys(urljoin(page, link).partition("#")[0] for link in links.found)
    names = {link: unquote(link.removeprefix(page)) for link in found if link.startswith(page)}
    return [RemoteFile(link, (name,), None) for link, name in names.items() if name and "/" not in name]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


# Files at addresses, copied into a private folder of this machine for as long as they are needed.
#
#     s3://bucket/runs/monday  ->  /tmp/stepscope-remote-k2j4/0/monday/rank00000.pt.trace.json.gz, ...
#
# The copy has the name of what it was made from, so that a report of it is the same; `shown` turns its path back into
# the address. From there on it is read like any other run, with the same checks.

# files copied at once: most of the time is waiting
_AT_ONCE = 8
# of the disk, left free for others
_KEPT_FREE_BYTES = 1 << 30
# Called with files copied so far and files in all.
CopyProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Copies:
    """Local paths for the given names, and the addresses they are copies of."""

    #: a path for each name: the copy of an address, or the name itself
    paths: tuple[str, ...]
    #: (path, address) of each copy
    made_from: tuple[tuple[str, str], ...] = ()

    def shown(self, text: str) -> str:
        for path, address in self.made_from:
            text = text.replace(path, address)
        return text


def named_as_given(run: Run, copies: Copies) -> Run:
    """Return a run that was read from copies with the original addresses in its messages."""
    if not copies.made_from:
        return run
    return replace(
        run,
        shown_path=copies.shown,
        unreadable=tuple(map(copies.shown, run.unreadable)),
        warnings=tuple(map(copies.shown, run.warnings)),
    )


def copies_kept(given: Sequence[str]) -> tuple[Copies, Callable[[], None]]:
    """Return copies, and a function that removes them."""
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
        room = ByteBudget(max(0, shutil.disk_usage(scratch).free - _KEPT_FREE_BYTES))
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
    address: str, parent: Path, room: ByteBudget, wanted: Callable[[str], bool] | None, progress: CopyProgress | None
) -> str:
    found = files_at(address)
    files = [one for one in found if wanted is None or wanted(one.name[-1])]
    if not files:
        raise InputError(f"no files at {shown_address(address)}; give a run folder, a trace or a glob of traces")
    room.expect(sum(one.size_bytes or 0 for one in files))
    alone = len(files) == 1 and files[0].name == (base_name(address),)
    folder = parent if alone else parent / base_name(address)
    for below in {folder.joinpath(*one.name[:-1]) for one in files}:
        below.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
        copied = pool.map(lambda one: copy_file(address, one, folder.joinpath(*one.name), room), files)
        try:
            for number, _ in enumerate(copied, 1):
                if progress:
                    progress(number, len(files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return str(folder / files[0].name[-1] if alone else folder)
