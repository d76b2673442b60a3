"""Plain data in a pickle, read by an interpreter without any opcode that runs code.

A pickle is a program. The opcodes that name a class, call it, or set its state (GLOBAL, REDUCE, BUILD, persistent ids,
extensions ...) are not implemented here: the first one ends the reading. The others make None, truth values, numbers of
at most 64 bits, texts, bytes, lists, tuples and dicts.

Memory is bounded by the input: every opcode makes one small object, texts are no longer than their bytes in the file,
the memo is a dict (an index of 2^32 reserves nothing), and numbers of thousands of digits are refused. Containers that
contain themselves, or nest deeper than MAX_DEPTH, are refused, so walking the result terminates.
"""

import gc
import gzip
import json
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from stepscope.errors import InputError
from stepscope.memory_limit import limited_memory
from stepscope.side_file import RefusedFile, open_side_file
from stepscope.units import readable_bytes

_MAX_DEPTH = 64
# of an integer: 64 bits, and the sign of those without one
_MAX_NUMBER_BYTES = 9
_INT32 = struct.Struct("<i")
_UINT16 = struct.Struct("<H")
_UINT32 = struct.Struct("<I")
_UINT64 = struct.Struct("<Q")
_FLOAT = struct.Struct(">d")
_CONTAINERS = (list, tuple, dict)

_REFUSED = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}


class NotPlainData(ValueError):
    """A pickle that is damaged, or holds anything but plain data; the message has the reason and the offset."""


def plain_data(pickled: bytes) -> Any:
    """Return the value of a pickle that holds nothing but plain data; `NotPlainData` for any other bytes."""
    reader = _Reader(pickled)
    collects = gc.isenabled()
    gc.disable()  # millions of containers, none of them garbage: looking for some takes half of the time
    try:
        value = reader.read()
    except (IndexError, struct.error) as error:
        raise NotPlainData(f"the pickle ends too early or takes what is not there, at byte {reader.at:,}") from error
    except UnicodeDecodeError as error:
        raise NotPlainData(f"a text that is no UTF-8, at byte {reader.at:,}") from error
    finally:
        if collects:
            gc.enable()
    if reader.shares_containers:
        _refuse_circles(value)
    return value


class _Reader:
    def __init__(self, pickled: bytes) -> None:
        self.data = pickled
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}
        self.shares_containers = False

    def read(self) -> Any:
        data, act, stack, marks, memo = self.data, _ACTIONS, self.stack, self.marks, self.memo
        if data[:1] != b"\x80":
            raise NotPlainData("no pickle of protocol 2 or later")
        while True:
            opcode = data[self.at]
            self.at += 1
            if opcode == 0x68:  # BINGET
                self.recall(data[self.at])
                self.at += 1
            elif opcode == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif opcode == 0x28:  # MARK
                marks.append(len(stack))
            elif opcode == 0x7D:  # EMPTY_DICT
                stack.append({})
            elif opcode == 0x4B:  # BININT1
                stack.append(data[self.at])
                self.at += 1
            elif opcode == 0x2E:  # STOP
                if len(stack) != 1 or marks:
                    raise NotPlainData(f"the pickle stops with {len(stack):,} values instead of one")
                return stack[0]
            else:
                action = act.get(opcode)
                if action is None:
                    name, at = _REFUSED.get(opcode), self.at - 1
                    if name is None:
                        raise NotPlainData(f"opcode {opcode:#04x} at byte {at:,} is not one of plain data")
                    raise NotPlainData(f"it holds more than plain data ({name} at byte {at:,}), which is never run")
                action(self)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise IndexError
        found = self.data[self.at : end]
        self.at = end
        return found

    def unsigned(self, width: struct.Struct) -> int:
        found: int = width.unpack_from(self.data, self.at)[0]
        self.at += width.size
        return found

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def container(self, kind: type) -> Any:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor or type(self.stack[-1]) is not kind:
            raise NotPlainData(f"items for a {kind.__name__} that is not there, at byte {self.at:,}")
        return self.stack[-1]

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError
        return self.stack.pop()

    def drop(self) -> None:
        if self.marks and len(self.stack) == self.marks[-1]:
            self.marks.pop()
        else:
            self.pop()

    def remember(self, index: int) -> None:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise IndexError
        if index > len(self.data):
            raise NotPlainData(f"value {index:,} of a pickle of {len(self.data):,} bytes, at byte {self.at:,}")
        self.memo[index] = self.stack[-1]

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise NotPlainData(f"a reference to value {index:,}, which is not there, at byte {self.at:,}")
        value = self.memo[index]
        if type(value) is not str and isinstance(value, _CONTAINERS):
            self.shares_containers = True
        self.stack.append(value)


def _refuse_circles(value: Any) -> None:
    open_now: set[int] = set()
    depth_below: dict[int, int] = {}
    path: list[tuple[Any, Any, int]] = []  # container, what of it is left, how deep it is below so far

    def enter(container: Any) -> None:
        if id(container) in open_now:
            raise NotPlainData("a list that contains itself")
        if len(path) >= _MAX_DEPTH:
            raise NotPlainData(f"values nested more than {_MAX_DEPTH} deep")
        open_now.add(id(container))
        items = container.values() if type(container) is dict else container
        path.append((container, (item for item in items if isinstance(item, _CONTAINERS)), 1))

    if isinstance(value, _CONTAINERS):
        enter(value)
    while path:
        container, left, depth = path[-1]
        item = next(left, None)
        if item is None:
            path.pop()
            open_now.discard(id(container))
            depth_below[id(container)] = depth
            if path:
                path[-1] = (*path[-1][:2], max(path[-1][2], depth + 1))
        elif id(item) not in depth_below:
            enter(item)
        else:
            depth = max(depth, depth_below[id(item)] + 1)
            if len(path) + depth > _MAX_DEPTH + 1:
                raise NotPlainData(f"values nested more than {_MAX_DEPTH} deep")
            path[-1] = (container, left, depth)


def _proto(r: _Reader) -> None:
    if r.byte() > 5:
        raise NotPlainData("a pickle of a protocol later than 5")


def _frame(r: _Reader) -> None:
    if r.unsigned(_UINT64) > len(r.data) - r.at:
        raise IndexError


def _number(r: _Reader, size: int) -> None:
    if size > _MAX_NUMBER_BYTES:
        raise NotPlainData(f"a number of {size:,} bytes, at byte {r.at:,}")
    r.push(int.from_bytes(r.take(size), "little", signed=True))


def _append(r: _Reader, items: list[Any]) -> None:
    r.container(list).extend(items)


def _set_items(r: _Reader, items: list[Any]) -> None:
    if len(items) % 2:
        raise NotPlainData(f"a key without a value, at byte {r.at:,}")
    into = r.container(dict)
    for key, value in zip(items[::2], items[1::2], strict=True):
        into[key if type(key) is str else _key(r, key)] = value


def _key(r: _Reader, key: Any) -> Any:
    if key is not None and not isinstance(key, str | int):
        raise NotPlainData(f"a key that is neither a text nor a whole number, at byte {r.at:,}")
    return key


def _tuple_of(r: _Reader, count: int) -> None:
    items = [r.pop() for _ in range(count)]
    r.push(tuple(reversed(items)))


def _text(r: _Reader, size: int) -> None:
    r.push(r.take(size).decode("utf-8", "surrogatepass"))


_ACTIONS: dict[int, Callable[[_Reader], None]] = {
    0x80: _proto,
    0x95: _frame,
    0x28: lambda r: r.marks.append(len(r.stack)),  # MARK
    0x30: lambda r: r.drop(),  # POP
    0x31: lambda r: r.since_mark().clear(),  # POP_MARK
    0x4E: lambda r: r.push(None),  # NONE
    0x88: lambda r: r.push(True),  # NEWTRUE
    0x89: lambda r: r.push(False),  # NEWFALSE
    0x4B: lambda r: r.push(r.byte()),  # BININT1
    0x4D: lambda r: r.push(r.unsigned(_UINT16)),  # BININT2
    0x4A: lambda r: r.push(r.unsigned(_INT32)),  # BININT
    0x8A: lambda r: _number(r, r.byte()),  # LONG1
    0x8B: lambda r: _number(r, r.unsigned(_UINT32)),  # LONG4
    0x47: lambda r: r.push(_FLOAT.unpack(r.take(8))[0]),  # BINFLOAT
    0x8C: lambda r: _text(r, r.byte()),  # SHORT_BINUNICODE
    0x58: lambda r: _text(r, r.unsigned(_UINT32)),  # BINUNICODE
    0x8D: lambda r: _text(r, r.unsigned(_UINT64)),  # BINUNICODE8
    0x43: lambda r: r.push(r.take(r.byte())),  # SHORT_BINBYTES
    0x42: lambda r: r.push(r.take(r.unsigned(_UINT32))),  # BINBYTES
    0x8E: lambda r: r.push(r.take(r.unsigned(_UINT64))),  # BINBYTES8
    0x5D: lambda r: r.push([]),  # EMPTY_LIST
    0x7D: lambda r: r.push({}),  # EMPTY_DICT
    0x29: lambda r: r.push(()),  # EMPTY_TUPLE
    0x85: lambda r: _tuple_of(r, 1),  # TUPLE1
    0x86: lambda r: _tuple_of(r, 2),  # TUPLE2
    0x87: lambda r: _tuple_of(r, 3),  # TUPLE3
    0x74: lambda r: r.push(tuple(r.since_mark())),  # TUPLE
    0x6C: lambda r: r.push(r.since_mark()),  # LIST
    0x61: lambda r: _append(r, [r.pop()]),  # APPEND
    0x65: lambda r: _append(r, r.since_mark()),  # APPENDS
    0x73: lambda r: _set_items(r, [r.pop(), r.pop()][::-1]),  # SETITEM
    0x75: lambda r: _set_items(r, r.since_mark()),  # SETITEMS
    0x71: lambda r: r.remember(r.byte()),  # BINPUT
    0x72: lambda r: r.remember(r.unsigned(_UINT32)),  # LONG_BINPUT
    0x94: lambda r: r.remember(len(r.memo)),  # MEMOIZE
    0x68: lambda r: r.recall(r.byte()),  # BINGET
    0x6A: lambda r: r.recall(r.unsigned(_UINT32)),  # LONG_BINGET
}


# Large files are read in a separate process with limits on memory and time.
#
# The calling process never has the objects of a large pickle, only what a reader made of them: plain lists of numbers
# and texts, as JSON. Where the limit is reached the other process ends, and this one reports it in a sentence.

# after gzip is taken off
_MAX_PICKLE_BYTES = 1 << 30
# a dict of three fields takes 232 bytes in memory and about 20 in a pickle
_MEMORY_PER_BYTE = 32
_MIN_MEMORY_BYTES = 1 << 30
# plain data to something that JSON can hold
Reader = Callable[[Any], Any]


def read_pickled(path: Path, reader: Reader, *, what: str) -> Any:
    """Return what `reader`, a function of a module, makes of the plain data in a file; an `InputError` otherwise.

    `what` names the kind of file that was expected.
    """
    try:
        size_bytes = _size_of(path)
        if size_bytes > _MAX_PICKLE_BYTES:
            raise NotPlainData(f"more than {readable_bytes(_MAX_PICKLE_BYTES)} once unpacked")
        if size_bytes >= 16 << 20:
            return _read_apart(path, reader, size_bytes=size_bytes, what=what)
        return reader(plain_data(_content(path)))
    except NotPlainData as error:
        raise InputError(f"{path} is no {what} that can be read: {error}; give a {what}") from error
    except (RefusedFile, EOFError, zlib.error, gzip.BadGzipFile) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise InputError(f"{path} is no {what} that can be read: {why}; give a {what}") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}; check that it is there") from error


@contextmanager
def _opened(path: Path) -> Iterator[BufferedIOBase]:
    with open_side_file(path, max_bytes=_MAX_PICKLE_BYTES) as f:
        is_gzip = f.read(2) == b"\x1f\x8b"
        f.seek(0)
        yield gzip.GzipFile(fileobj=f) if is_gzip else cast(BufferedIOBase, f)


def _size_of(path: Path) -> int:
    with _opened(path) as f:
        if not isinstance(f, gzip.GzipFile):
            return path.stat().st_size
        size_bytes = 0
        while size_bytes <= _MAX_PICKLE_BYTES and (piece := f.read(1 << 20)):
            size_bytes += len(piece)
    return size_bytes


def _content(path: Path) -> bytes:
    with _opened(path) as f:
        content = f.read(_MAX_PICKLE_BYTES + 1)
    if len(content) > _MAX_PICKLE_BYTES:
        raise NotPlainData(f"more than {readable_bytes(_MAX_PICKLE_BYTES)} once unpacked")
    return content


def _read_apart(path: Path, reader: Reader, *, size_bytes: int, what: str) -> Any:
    limit_bytes = max(_MIN_MEMORY_BYTES, _MEMORY_PER_BYTE * size_bytes)
    seconds = 60 + 5 * (size_bytes >> 20)
    command = [sys.executable, "-m", "stepscope.trace.pickles", f"{reader.__module__}:{reader.__name__}"]
    package = str(Path(__file__).parents[2])
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([package, *sys.path])}
    try:
        done = subprocess.run(
            [*command, str(path.resolve()), str(limit_bytes)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            env=environ,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{path} was not read within {seconds} s; give a smaller {what}") from error
    if done.returncode != 0:
        raise NotPlainData(f"its reader ended with {done.returncode}")
    answer = json.loads(done.stdout)
    if "refused" in answer:
        raise NotPlainData(answer["refused"])
    return answer["made"]


def _main(reader: str, path: str, limit_bytes: str) -> int:
    from importlib import import_module

    module, _, name = reader.partition(":")
    make = getattr(import_module(module), name)
    try:
        with limited_memory(int(limit_bytes)):
            answer = {"made": make(plain_data(_content(Path(path))))}
    except MemoryError:
        answer = {"refused": f"it takes more than {readable_bytes(int(limit_bytes))} of memory"}
    except (NotPlainData, InputError) as error:
        answer = {"refused": str(error)}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
