"""What a calibration is made of: the curves through measured points, its JSON, and points from a recorded run."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from stepscope.contract.operations import OPERATIONS, OPS, op_name
from stepscope.contract.run_folder import SCHEMA
from stepscope.cost.alpha_beta import Curve, fit_pieces
from stepscope.cost.calibration import KIND, Calibration
from stepscope.errors import InputError
from stepscope.side_file import MAX_BYTES, parsed_json, read_side_json, read_side_text, side_file_lines
from stepscope.stats.robust import median
from stepscope.units import NS_PER_US

if TYPE_CHECKING:
    from stepscope.run.aligned import AlignedRun

# Measured collective times, from a CSV or from the output of nccl-tests (text or JSON).
#
# Bytes are the full buffer of the operation: what a gather receives, what a scatter sends. nccl-tests prints the same.

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


def calibrate(points: Iterable[Point], *, about: Mapping[str, Any] | None = None) -> Calibration:
    """Return the curves through the points."""
    groups: dict[tuple[str, int], list[Point]] = {}
    for point in points:
        groups.setdefault((point.op, point.world_size), []).append(point)
    curves = [_curve_of(op, world, group) for (op, world), group in groups.items()]
    curves.sort(key=lambda c: (OPERATIONS.index(c.op), c.world_size))
    return Calibration(tuple(curves), dict(about or {}))


def _curve_of(op: str, world_size: int, points: Sequence[Point]) -> Curve:
    ordered = sorted(points, key=lambda p: p.size_bytes)
    sizes = np.array([p.size_bytes for p in ordered], float)
    times = np.array([p.time_ns for p in ordered])
    pieces, left_out = fit_pieces(sizes, times)
    ratio = pieces.time_ns(sizes) / times
    logs = np.log(times)
    total = float(((logs - logs.mean()) ** 2).sum())
    return Curve(
        op=op,
        world_size=world_size,
        pieces=pieces,
        left_out=left_out,
        r2=1 - float((np.log(ratio) ** 2).sum()) / total if total else 1.0,
        mean_error=float(np.abs(ratio - 1).mean()),
        max_error=float(np.abs(ratio - 1).max()),
        points=tuple((p.size_bytes, p.time_ns) for p in ordered),
    )


def calibration_json(calibration: Calibration) -> dict[str, Any]:
    """Return the calibration as plain data; times in microseconds."""
    return {
        "schema": SCHEMA,
        "kind": KIND,
        **calibration.about,
        "curves": [_curve_json(c) for c in calibration.curves],
    }


def _curve_json(curve: Curve) -> dict[str, Any]:
    return {
        "op": curve.op,
        "world_size": curve.world_size,
        "r2": round(curve.r2, 6),
        "mean_error": round(curve.mean_error, 6),
        "max_error": round(curve.max_error, 6),
        "left_out_error": None if curve.left_out_error is None else round(curve.left_out_error, 6),
        "pieces": [
            {
                "from_bytes": int(p.from_bytes),
                "alpha_us": round(p.alpha_ns / NS_PER_US, 3),
                "gb_per_s": round(1 / p.ns_per_byte, 4) if p.ns_per_byte else None,
            }
            for p in curve.pieces.lines()
        ],
        "knots": [[b, t / NS_PER_US] for b, t in zip(curve.pieces.knot_bytes, curve.pieces.knot_ns, strict=True)],
        "left_out": [
            [int(b), r if math.isfinite(r) else None]
            for b, r in zip(curve.left_out.size_bytes.tolist(), curve.left_out.log_ratio.tolist(), strict=True)
        ],
        "points": [[b, t / NS_PER_US] for b, t in curve.points],
    }


# Points from a recorded run.


def points_from_run(shared: "AlignedRun") -> list[Point]:
    """Return one point per matched collective: its shortest transfer over the ranks, waiting removed.

    All ranks share one transfer; the one that arrived last saw nothing but it.
    """
    matches, ranks = shared.matches, shared.run.ranks
    points = []
    for m in range(len(matches)):
        size, op = int(matches.size_bytes[m]), _calibrated(OPS[matches.op[m]])
        members = range(int(matches.first[m]), int(matches.first[m + 1]))
        world = 2 if op == "send_recv" else matches.groups[matches.group[m]].size or len(members)
        if op is None or size <= 0 or world < 2:
            continue
        transfers = []
        for j in members:
            index, row = int(matches.rank_index[j]), int(matches.row[j])
            c = ranks[index].collectives
            transfers.append(int(c.end_ns[row] - c.start_ns[row] - max(shared.wait_ns[index][row], 0)))
        shortest = min(transfers)
        if shortest > 0:
            points.append(Point(op, world, size, float(shortest)))
    if not points:
        raise InputError(
            f"{shared.run.name}: no collective could be matched across ranks with its size; record two ranks or more, "
            "with --shapes on gloo"
        )
    return _usual(points)


def _calibrated(op: str) -> str | None:
    op = "send_recv" if op in ("send", "recv") else op
    return op if op in OPERATIONS else None


def _usual(points: list[Point]) -> list[Point]:
    groups: dict[tuple[str, int, int], list[float]] = {}
    for p in points:
        groups.setdefault((p.op, p.world_size, p.size_bytes), []).append(p.time_ns)
    return [Point(*key, median(times)) for key, times in groups.items()]
