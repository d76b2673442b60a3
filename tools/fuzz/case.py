"""What is one hostile input? Files, each described by how it is made, and the command line that reads them.

A description is plain JSON, so that a failing case is one small file that anybody can read, change and run again:

    {"argv": ["report", "trace.json", "--json", "-"],
     "files": {"trace.json": {"seed": "layouts/compact-alltoall.json.gz",
                              "edits": [["gunzip"], ["set", ["traceEvents", 3, "args", "Device Id"], "1e999"]]}}}

A file begins as a `seed` (below tests/data), as `text` (one byte per letter), or as a `node` that is no regular file;
its edits are applied in order. With `count`, there are so many of it, `@` in its name being their number.
"""

import gzip
import io
import json
import os
import shutil
import sqlite3
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import zstandard

from stepscope.trace import cache as trace_cache, table as schema
from stepscope.trace.read import read
from stepscope.trace.table import SparseColumn

SEEDS = Path(__file__).parents[2] / "tests" / "data"
_PLACE = "@@value@@"
_HONEST = SEEDS / "gloo-linear" / "rank00000.pt.trace.json.gz"
_VALUES = (-1, -2, 0, 1, 2**31 - 1, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63))
Recipe = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One command line and the files it finds in its working folder."""

    argv: tuple[str, ...]
    files: dict[str, Recipe] = field(default_factory=dict)
    kind: str = ""
    """the generator"""
    what: str = ""
    """what is hostile about it, in a few words"""
    outputs: tuple[str, ...] = ()
    """names that the command may write, over what is there too"""
    stdout: str = "file"
    """where standard output goes: file, or full, closed, ascii"""
    expect: dict[str, Any] = field(default_factory=dict)
    """what else has to hold: exit_code (a list), says (a pattern in what is printed)"""

    @property
    def text(self) -> str:
        """Return the case as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"


def case_from(text: str) -> Case:
    """Return the case that a JSON text describes."""
    found = json.loads(text)
    return Case(**{**found, "argv": tuple(found["argv"]), "outputs": tuple(found.get("outputs", ()))})


def seed(name: str, *edits: list[Any]) -> Recipe:
    """Return a file that begins as one of tests/data; what is compressed there is edited as plain text."""
    opened = [["gunzip"]] if edits and name.endswith(".gz") else []
    return {"seed": name, "edits": [*opened, *edits]} if edits else {"seed": name}


def text(content: str, *edits: list[Any]) -> Recipe:
    """Return a file with this content, one byte per letter."""
    return {"text": content, "edits": list(edits)} if edits else {"text": content}


def node(kind: str, value: Any = None) -> Recipe:
    """Return something that is no regular file: fifo, device, link, folder, unreadable; or a sparse file, a cache."""
    return {"node": kind} if value is None else {"node": kind, "value": value}


def make_files(case: Case, folder: Path) -> int:
    """Write the case's files below `folder` and return the bytes of their content."""
    size = 0
    last: tuple[Recipe, bytes] = ({}, b"")  # the files of many ranks have one recipe
    for name, recipe in _each(case.files):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if "node" in recipe:
            _NODES[recipe["node"]](path, recipe.get("value"))
        else:
            content = last[1] if recipe == last[0] else made(recipe)
            last = recipe, content
            path.write_bytes(content)
            size += len(content)
    return size


def _each(files: dict[str, Recipe]) -> Iterator[tuple[str, Recipe]]:
    for name, recipe in files.items():
        yield from ((name.replace("@", f"{n:05d}"), recipe) for n in range(recipe.get("count", 1)))


def made(recipe: Recipe) -> bytes:
    """Return the content of a file."""
    data = _seed_bytes(recipe["seed"]) if "seed" in recipe else recipe["text"].encode("latin-1")
    for name, *values in recipe.get("edits", ()):
        data = _EDITS[name](data, *values)
    return data


@cache
def _seed_bytes(name: str) -> bytes:
    return (SEEDS / name).read_bytes()


def _set(data: bytes, path: list[Any], raw: str) -> bytes:
    """Return JSON with the value at `path` replaced by any text, which need be no JSON."""
    document = json.loads(data)
    at = document
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = _PLACE
    return json.dumps(document).replace(json.dumps(_PLACE), raw).encode("utf-8", "surrogatepass")


def _set_all(data: bytes, path: list[Any], raw: str, every: int) -> bytes:
    """Return a trace with the value at `path` of every so-many-th event replaced, where the event has it."""
    document = json.loads(data)
    for event in document["traceEvents"][::every]:
        at = event
        for step in path[:-1]:
            at = at.get(step) if isinstance(at, dict) else None
        if isinstance(at, dict) and path[-1] in at:
            at[path[-1]] = _PLACE
    return json.dumps(document).replace(json.dumps(_PLACE), raw).encode("utf-8", "surrogatepass")


def _set_line(data: bytes, number: int, path: list[Any], raw: str) -> bytes:
    lines = data.split(b"\n")
    lines[number] = _set(lines[number], path, raw)
    return b"\n".join(lines)


def _replace(data: bytes, start: int, end: int, by: str) -> bytes:
    return data[:start] + by.encode("latin-1") + data[end:]


def _numbered(data: bytes, count: int) -> bytes:
    return b"".join(data.replace(b"@", b"%d" % n) for n in range(count))


def _tar(data: bytes, name: str, others: dict[str, Recipe]) -> bytes:
    """Return an archive of this content under a name, and of other files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for member, content in {name: data, **{other: made(recipe) for other, recipe in others.items()}}.items():
            about = tarfile.TarInfo(member)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return out.getvalue()


def _sql(data: bytes, statements: str) -> bytes:
    """Return an sqlite file after some statements, as far as they can be carried out."""
    with tempfile.TemporaryDirectory(prefix="fuzz-sql-") as folder:
        path = Path(folder, "x.sqlite")
        path.write_bytes(data)
        db = sqlite3.connect(path)
        try:
            db.executescript(statements)
            db.commit()
        except sqlite3.Error:
            pass
        finally:
            db.close()
        return path.read_bytes()


_EDITS: dict[str, Callable[..., bytes]] = {
    "gunzip": lambda data: gzip.decompress(data),
    "gzip": lambda data, level: gzip.compress(data, level, mtime=0),
    "zstd": lambda data, level: zstandard.compress(data, level),
    "set": _set,
    "set_all": _set_all,
    "set_line": _set_line,
    "replace": _replace,
    "copy": lambda data, start, end, to: data[:to] + data[start:end] + data[to:],
    "swap": lambda data, a, b, c: data[:a] + data[b:c] + data[a:b] + data[c:],
    "keep": lambda data, start, end: data[start:end],
    "times": lambda data, count: data * count,
    "numbered": _numbered,
    "wrap": lambda data, before, after: before.encode("latin-1") + data + after.encode("latin-1"),
    "join": lambda data, other: data + made(other),
    "tar": _tar,
    "sql": _sql,
}


# A cache that fits its trace in key and checksums, but for one value that no parser would have stored


def any_forgery(rng: Random) -> list[Any]:
    """Return which value of which column is forged, and how."""
    dense = [f"dense/{column.name}" for column in schema.DENSE]
    sparse = [f"{part}/{column.name}" for column in schema.ARGS for part in ("rows", "values")]
    return [rng.choice(rng.choice((dense, sparse))), rng.randrange(10_000), rng.choice(_VALUES)]


def forge_cache(target: Path, forgery: list[Any]) -> None:
    """Write the cache `.stepscope/NAME.columns` of the trace NAME; one of an honest trace where NAME is not there."""
    path = target.parent.parent / target.name.removesuffix(".columns")
    gone = not path.exists()
    if gone:
        shutil.copyfile(_HONEST, path)
    trace = read(path)
    part, _, name = forgery[0].partition("/")
    if part == "dense":
        trace = replace(trace, columns={**trace.columns, name: _changed(trace.columns[name], *forgery[1:])})
    elif name in trace.args:
        kept = trace.args[name]
        rows = _changed(kept.rows, *forgery[1:]) if part == "rows" else kept.rows
        values = _changed(kept.values, *forgery[1:]) if part == "values" else kept.values
        trace = replace(trace, args={**trace.args, name: SparseColumn(rows, values)})
    key = trace_cache._key(path)
    assert key is not None
    trace_cache._store(target, trace, key)
    if gone:
        path.unlink()


def _changed(column: Any, row: int, value: int) -> Any:
    changed = column.copy()
    limits = np.iinfo(column.dtype)
    if len(changed):
        changed[row % len(changed)] = min(max(value, limits.min), limits.max)
    return changed


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as f:
        f.truncate(size)


def _device(path: Path, minor: int) -> None:
    """Make a memory device (3 null, 5 zero, 7 full), or a link to it where only a superuser could."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    except PermissionError:
        path.symlink_to({3: "/dev/null", 5: "/dev/zero", 7: "/dev/full"}[minor])


def _unreadable(path: Path, _: None) -> None:
    path.mkdir()
    path.chmod(0)


_NODES: dict[str, Callable[[Path, Any], None]] = {
    "fifo": lambda path, _: os.mkfifo(path),
    "folder": lambda path, _: path.mkdir(parents=True, exist_ok=True),
    "link": lambda path, target: path.symlink_to(target),
    "device": _device,
    "sparse": _sparse,
    "unreadable": _unreadable,
    "forged_cache": forge_cache,
}
