"""Measured collective times, from a CSV or from the output of nccl-tests (text or JSON).

Bytes are the full buffer of the operation: what a gather receives, what a scatter sends. nccl-tests prints the same.
"""

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.contract.operations import OPERATIONS, op_name
from stepscope.errors import InputError
from stepscope.side_file import MAX_BYTES, parsed_json, read_side_json, read_side_text, side_file_lines

_MAX_WORLD_SIZE = 1 << 20
_MAX_SIZE_BYTES = 1 << 60
_MAX_SHOWN = 200
_COLUMNS = ("op", "world_size", "bytes", "median_us")
_RANK_LINE = re.compile(r"^#\s+Rank\s+\d+\s")
_NCCL_ROW = re.compile(r"^\s*(\d+)\s+\d+\s+\w+\s+\w+\s+-?\d+\s+([\d.eE+]+)\s")


class Point(NamedTuple):
    """The usual time of one operation at one size."""

    op: str
    world_size: int
    size_bytes: int
    time_ns: float


def points_from_csv(path: str | Path) -> list[Point]:
    """Return the rows of a CSV with at least the columns op, world_size, bytes and median_us."""
    try:
        reader = csv.DictReader(line.decode("utf-8") for line in side_file_lines(path, max_bytes=MAX_BYTES))
        if [c for c in _COLUMNS if c not in (reader.fieldnames or ())]:
            found = ", ".join(reader.fieldnames or ())[:_MAX_SHOWN] or "nothing"
            raise InputError(
                f"{path}: the columns have to be {', '.join(_COLUMNS)}, not {found}; see docs/commands/calibrate.md"
            )
        rows = ((row["op"], row["world_size"], row["bytes"], row["median_us"]) for row in reader)
        return _checked(rows, where=str(path))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as a CSV of collective times: {error}") from error


def points_from_nccl_tests(path: str | Path, *, op: str | None = None) -> list[Point]:
    """Return the out-of-place times of an nccl-tests run, printed or written with `-J`.

    The operation is taken from the output, else from the file's name, unless given.
    """
    try:
        text = read_side_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as output of nccl-tests: {error}") from error
    return _from_json(text, path, op) if text.lstrip().startswith("{") else _from_text(text, path, op)


def points_from_bench(path: str | Path) -> tuple[list[Point], dict[str, Any]]:
    """Return what `stepscope.bench.collectives` measured, and on which machine and software."""
    try:
        document = read_side_json(path).value
        columns = [document["columns"].index(name) for name in _COLUMNS]
        rows = [[row[c] for c in columns] for row in document["rows"]]
        about = {key: document[key] for key in ("backend", "machine", "software")}
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise InputError(f"{path}: is not what stepscope.bench.collectives writes: {error!r}") from error
    return _checked(rows, where=str(path)), about


def _checked(rows: Iterable[Sequence[Any]], *, where: str) -> list[Point]:
    points = []
    for number, row in enumerate(rows, start=1):
        try:
            op, world, size, time_us = op_name(str(row[0])), int(row[1]), int(float(row[2])), float(row[3])
        except (TypeError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"{where}, row {number}: has to be an operation and three numbers, not {_short(row)}"
            ) from error
        op = "send_recv" if op in ("send", "recv") else op
        if op not in OPERATIONS:
            raise InputError(f"{where}, row {number}: has to be of {', '.join(OPERATIONS)}, not {_short(row[0])}")
        if not 2 <= world <= _MAX_WORLD_SIZE or not 1 <= size <= _MAX_SIZE_BYTES or not 0 < time_us < 1e12:
            raise InputError(
                f"{where}, row {number}: has to have a world size of 2 or more and bytes and time above 0, not "
                f"{_short(row)}"
            )
        points.append(Point(op, world, size, time_us * 1e3))
    if not points:
        raise InputError(f"{where}: has no measured collective; measure some or give another file")
    return points


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _from_text(text: str, path: str | Path, op: str | None) -> list[Point]:
    lines = text.splitlines()
    named = next((line for line in lines if "test starting" in line), "")
    world = sum(1 for line in lines if _RANK_LINE.match(line))
    op = op or _program(named.rpartition(":")[2], path)
    rows = [(op, world, *found.groups()) for line in lines if (found := _NCCL_ROW.match(line)) and found[1] != "0"]
    if rows and world < 2:
        raise InputError(f"{path}: '#  Rank' lines have to name at least 2 ranks, not {world}; keep the whole output")
    return _checked(rows, where=str(path))


def _from_json(text: str, path: str | Path, op: str | None) -> list[Point]:
    try:
        document = parsed_json(text).value
        config = document["config"]
        devices = config.get("devices") or document.get("devices") or []
        program = op or _program((document.get("args") or [""])[0], path)
        world = len(devices) * int(config.get("nthreads", 1)) * int(config.get("ngpus", 1))
        rows = [(program, world, r["size"], _time_us(r)) for r in document["results"] if _measured(r)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: is not the JSON of nccl-tests (-J): {error!r}") from error
    return _checked(rows, where=str(path))


def _measured(result: dict[str, Any]) -> bool:
    return bool(result.get("size")) and bool(result.get("out_of_place") or result.get("in_place"))


def _time_us(result: dict[str, Any]) -> float:
    timed = result.get("out_of_place") or result["in_place"]
    return float(timed["time"] if "time" in timed else timed["cpu_time"])


def _program(name: str, path: str | Path) -> str:
    for text in (Path(name.strip()).name, Path(path).name):
        if op_name(text) in OPERATIONS or op_name(text) in ("send", "recv"):
            return op_name(text)
    raise InputError(f"{path}: the operation is not in the output; give it with --op")
