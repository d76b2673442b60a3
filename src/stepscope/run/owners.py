"""Who did it: the owners that a rank recorded in a step with Python frames, read from `rank00000.owners.json.gz`.

The file tells, for the operators of one or two steps after the window, in order and by thread, the user's stack and the
module of each. Nothing of those steps is in any timing. Anybody may have put the file there: its size is bounded, every
index is checked, and a file that does not hold together is refused as a whole with the name of the field.
"""

import re
import zlib
from collections.abc import Iterable
from dataclasses import field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.contract.run_folder import (
    AUTOGRAD,
    EXECUTING,
    FUNCTIONS,
    MAX_SOURCE_FILE_BYTES,
    OTHER,
    OWNERS_SCHEMA,
    SOURCE_FOLDER,
    TRAINING,
    owners_file,
)
from stepscope.records import ArrayRecord, dataclass
from stepscope.side_file import MAX_BYTES, parsed_json, read_side_file
from stepscope.trace.table import Int64s

_MAX_TEXT = 4096
_MAX_LINE = 1 << 31
_MAX_NS = 1 << 62

Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    #: relative to the project's folder where it lies below it
    file: str
    line: int
    function: str
    #: outside torch, the standard library and installed packages
    is_user: bool
    #: equal to `line` where that line is known to be executing; else it is after the call in `line` and not after the
    #: one in `line_to` (operator syntax raises no call), 0 where no call follows
    line_to: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class OwnedThread(ArrayRecord):
    """The operators of one thread in the steps with frames, by start. References are -1 for none."""

    role: str
    name: Int32s
    #: how many operators and ranges are around it
    depth: Int32s
    stack: Int32s
    module: Int32s
    #: autograd's number
    sequence: Int64s
    step: Int64s
    #: of stretches of Python in no operator: the operator that follows, the number of operators after the last
    gap_before: Int64s
    gap_stack: Int32s
    #: as measured with frames: only shares of one gap mean anything
    gap_ns: Int64s

    def __len__(self) -> int:
        return len(self.name)


@dataclass(frozen=True, eq=False, repr=False)
class RankOwners(ArrayRecord):
    """What one rank's file of owners holds."""

    rank: int
    #: EXECUTING or FUNCTIONS
    lines: str
    root: str
    frames: tuple[Frame, ...]
    #: indices of frames, outermost first
    stacks: tuple[tuple[int, ...], ...]
    modules: tuple[str, ...]
    names: tuple[str, ...]
    threads: tuple[OwnedThread, ...]
    #: kept below `source/` in the run folder
    source_files: tuple[str, ...] = ()
    #: parameters of each gradient bucket
    buckets: tuple[tuple[str, ...], ...] | None = None
    #: dataset lines and their share of the samples
    loader: tuple[tuple[str, float], ...] | None = None
    #: why something is not known
    reasons: tuple[str, ...] = ()


def _require(is_sound: bool, field: str) -> None:
    if not is_sound:
        raise ValueError(field)


def read_owners(folder: Path, ranks: Iterable[int]) -> tuple[tuple[RankOwners, ...], list[str]]:
    """Return the owners of these ranks where a run folder has them, and one line for each file that was refused."""
    found, refused = [], []
    for rank in ranks:
        path = folder / owners_file(rank)
        try:
            found.append(_owners(_document(path), rank))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, zlib.error) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            refused.append(f"{path.name} is left out ({why}): who owns the time of rank {rank} is unknown")
    return tuple(found), refused


def _document(path: Path) -> dict[str, Any]:
    unpack = zlib.decompressobj(wbits=31)  # of a gzip stream
    text = unpack.decompress(read_side_file(path), MAX_BYTES)
    _require(not unpack.unconsumed_tail, f"more than {MAX_BYTES:,} bytes unpacked")
    _require(unpack.eof, "cut off")
    value = parsed_json(text).value
    _require(isinstance(value, dict), "no JSON object")
    return value


def _owners(said: dict[str, Any], rank: int) -> RankOwners:
    is_named = said.get("schema") == OWNERS_SCHEMA and said.get("rank") == rank
    _require(is_named, "schema or rank is not what its name says")
    _require(said.get("lines") in (EXECUTING, FUNCTIONS), "lines")
    files = _texts(said, "files")
    frames = tuple(_frame(entry, files) for entry in _list(said, "frames"))
    stacks = tuple(_stack(entry, len(frames)) for entry in _list(said, "stacks"))
    _require(sum(map(len, stacks)) <= 1 << 22, "stacks")
    modules, names = _texts(said, "modules"), _texts(said, "names")
    sizes = {"name": len(names), "stack": len(stacks), "module": len(modules)}
    reasons = said.get("reasons")
    return RankOwners(
        rank=rank,
        lines=said["lines"],
        root=str(said.get("root") or "")[:_MAX_TEXT],
        frames=frames,
        stacks=stacks,
        modules=modules,
        names=names,
        threads=tuple(_thread(entry, sizes) for entry in _list(said, "threads")),
        source_files=_texts(said, "source_files") if said.get("source_files") else (),
        buckets=_buckets(said),
        loader=_loader(said),
        reasons=tuple(f"{k}: {v}"[:_MAX_TEXT] for k, v in reasons.items()) if isinstance(reasons, dict) else (),
    )


def _list(said: dict[str, Any], field: str) -> list[Any]:
    value = said.get(field)
    _require(isinstance(value, list), field)
    return value  # type: ignore[return-value]


def _texts(said: dict[str, Any], field: str) -> tuple[str, ...]:
    found = _list(said, field)
    _require(all(isinstance(text, str) and len(text) <= _MAX_TEXT for text in found), field)
    return tuple(found)


def _frame(entry: Any, files: tuple[str, ...]) -> Frame:
    _require(isinstance(entry, list) and len(entry) in (4, 5), "frames")
    file, line, function, is_user, line_to = (*entry, entry[1])[:5]
    indices = ((file, len(files)), (line, _MAX_LINE), (line_to, _MAX_LINE))
    _require(isinstance(function, str) and all(_is_index(i, size) for i, size in indices), "frames")
    return Frame(files[file], line, function[:_MAX_TEXT], bool(is_user), line_to)


def _stack(entry: Any, num_frames: int) -> tuple[int, ...]:
    is_sound = isinstance(entry, list) and len(entry) <= 512 and all(_is_index(i, num_frames) for i in entry)
    _require(is_sound, "stacks")
    return tuple(entry)


def _is_index(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value < size


def _thread(entry: Any, sizes: dict[str, int]) -> OwnedThread:
    _require(isinstance(entry, dict) and entry.get("role") in (TRAINING, AUTOGRAD, OTHER), "threads.role")
    name = _column(entry, "name", 0, sizes["name"])
    count = len(name)
    gaps = _list(entry, "python")
    _require(all(isinstance(gap, list) and len(gap) == 3 for gap in gaps), "threads.python")
    by_part = {str(i): [gap[i] for gap in gaps] for i in range(3)}
    return OwnedThread(
        role=entry["role"],
        name=name.astype(np.int32),
        depth=_column(entry, "depth", 0, 1 << 20, count).astype(np.int32),
        stack=_column(entry, "stack", -1, sizes["stack"], count).astype(np.int32),
        module=_column(entry, "module", -1, sizes["module"], count).astype(np.int32),
        sequence=_column(entry, "sequence", -1, _MAX_NS, count),
        step=_column(entry, "step", -1, _MAX_NS, count),
        gap_before=_column(by_part, "0", 0, count + 1),
        gap_stack=_column(by_part, "1", -1, sizes["stack"]).astype(np.int32),
        gap_ns=_column(by_part, "2", 0, _MAX_NS),
    )


def _column(said: dict[str, Any], field: str, low: int, high: int, count: int | None = None) -> Int64s:
    values = _list(said, field)
    column = np.array(values, np.int64) if set(map(type, values)) <= {int} else None
    is_sound = column is not None and count in (None, len(column))
    if column is None or not is_sound or (len(column) and not (low <= column.min() and column.max() < high)):
        raise ValueError(f"threads.{field}")
    return column


def _buckets(said: dict[str, Any]) -> tuple[tuple[str, ...], ...] | None:
    given = said.get("buckets")
    if given is None:
        return None
    _require(isinstance(given, list) and all(isinstance(bucket, list) for bucket in given), "buckets")
    names = (name for bucket in given for name in bucket)
    _require(all(isinstance(name, str) and len(name) <= _MAX_TEXT for name in names), "buckets")
    return tuple(map(tuple, given))


def _loader(said: dict[str, Any]) -> tuple[tuple[str, float], ...] | None:
    given = said.get("loader")
    if given is None:
        return None
    for entry in _list(said, "loader"):
        _require(isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str), "loader")
        _require(isinstance(entry[1], int | float) and 0 <= entry[1] <= 1, "loader")
    return tuple((name[:_MAX_TEXT], float(share)) for name, share in given)


# The text of the user's source files, as the recorder kept it below `source/` in the run folder.
#
# Anybody may have put files and names there: a name that leads out of the folder, a link, anything that is no regular
# file of the size that the recorder keeps, or no text, has no lines.

_TEXT = re.compile(r"""[rbfuRBFU]{0,2}("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|#.*""")


def code_of(line: str) -> str:
    """Return what of a line is code: texts and comments are a quote, and what is far to the right is cut off.

    >>> code_of("f('a[0]') + x[1]  # times 2")
    'f(") + x[1]  "'
    """
    return _TEXT.sub('"', line[:1000])


def code_text_has_comprehension(text: str) -> bool:
    """Return whether a line of source holds a comprehension as a whole.

    >>> lines = ("y = [f(x) for x in xs]", "for x in f(xs):", "g('[for x in')", "[f(x) for x")
    >>> [code_text_has_comprehension(s) for s in lines]
    [True, False, False, False]
    """
    depth, inside = 0, 0
    for token in re.findall(r"\w+|[\[\](){}]", code_of(text)):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if 0 < inside > depth:
                return True
        elif token == "for" and depth > 0:
            inside = depth
    return False


@dataclass(frozen=True)
class SourceText:
    """The kept source files of a run; each is read when it is first asked for."""

    #: the run folder, None where a run has none
    folder: Path | None = None
    _read: dict[str, tuple[str, ...] | None] = field(default_factory=dict, repr=False, compare=False)

    def lines(self, file: str) -> tuple[str, ...] | None:
        if file not in self._read:
            self._read[file] = self._lines(file)
        return self._read[file]

    def line(self, file: str, number: int) -> str | None:
        """Return one line, counted from 1, without blanks around it; None where it was not kept."""
        found = self.lines(file)
        return found[number - 1].strip() if found is not None and 0 < number <= len(found) else None

    def _lines(self, file: str) -> tuple[str, ...] | None:
        named = PurePosixPath(file)
        if self.folder is None or named.is_absolute() or ".." in named.parts or "\0" in file or not named.parts:
            return None
        try:
            path = (self.folder.resolve() / SOURCE_FOLDER).joinpath(*named.parts)
            if path.resolve() != path:
                return None
            text = read_side_file(path, max_bytes=MAX_SOURCE_FILE_BYTES).decode("utf-8")
        except (OSError, RuntimeError, ValueError):
            return None
        return tuple(line.expandtabs(4) for line in text.split("\n"))
