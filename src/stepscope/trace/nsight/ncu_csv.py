"""Metrics of kernels from the CSV of Nsight Compute, whichever of its forms it has.

    long    a row per launch and metric      ..., "Kernel Name", ..., "Metric Name", "Metric Unit", "Metric Value"
    wide    a row per launch, a column per metric, the units in the first row (`--page raw`)
    old     long, without block, grid, device and CC

Lines before the header (`==PROF== ...`) are skipped. Numbers are written in the locale of whoever ran it: `1,234.5` or
`1.234,5`; all numbers of a file together tell which.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path

from stepscope.dataclass import dataclass
from stepscope.errors import InputError
from stepscope.side_file import side_file_lines
from stepscope.trace.nsight.ncu_metrics import KernelMetrics, is_read, kernel_metrics
from stepscope.trace.nsight.numerals import decimal_mark, marks_of, number
from stepscope.units import printable

MAX_BYTES = 1 << 30
MAX_LAUNCHES = 200_000
MAX_FIELD = 1 << 20
_ID, _NAME, _METRIC, _UNIT, _VALUE = "ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_DETAILS = ("Block Size", "Grid Size", "Device", "Process ID")
_NO_METRIC = {
    _ID, _NAME, *_DETAILS, "Process Name", "Host Name", "Kernel Time", "Context", "Stream", "CC", "Section Name",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
_SIZES = re.compile(r"\d{1,12}")


@dataclass
class _Launch:
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    device: int | None
    values: dict[str, tuple[str, str]] = field(default_factory=dict)
    """`(number as written, unit)` by metric"""


@dataclass(frozen=True)
class NcuFile:
    """The launches in one file, in the order they ran."""

    path: Path
    launches: tuple[KernelMetrics, ...]
    unusable: int
    """values that are no numbers, or numbers that cannot be"""


def is_ncu_csv(start: bytes) -> bool:
    """Return whether a file that begins like this is CSV of Nsight Compute."""
    header = _header_in(start.decode(errors="replace").splitlines())
    return header is not None


def read_ncu_csv(path: Path) -> NcuFile:
    """Return the launches of a CSV file of Nsight Compute; an `InputError` where it is none or damaged."""
    shown = printable(str(path))
    try:
        lines = (line.decode("utf-8-sig", errors="replace") for line in side_file_lines(path, max_bytes=MAX_BYTES))
        marks: set[str] = set()
        found = _launches(lines, marks)
    except OSError as error:
        raise InputError(f"{shown}: cannot be read: {error.strerror or error}") from error
    except csv.Error as error:
        raise InputError(f"{shown}: is no CSV that can be read ({error}); write it again with ncu --csv") from error
    if found is None:
        raise InputError(f"{shown}: has no header of Nsight Compute's CSV; write it with ncu --csv (and --page raw)")
    mark = decimal_mark(marks)
    if mark is None:
        raise InputError(f"{shown}: its numbers are written in two ways (1,5 and 1.5); write it again with LC_ALL=C")
    unusable, out = 0, []
    for launch in found:
        values = {}
        for metric, (text, unit) in launch.values.items():
            value = number(text, mark)
            if value is None:
                unusable += 1
            else:
                values[metric] = value, unit
        metrics, bad = kernel_metrics(launch.name, launch.grid, launch.block, launch.device, values)
        unusable += bad
        out.append(metrics)
    return NcuFile(path, tuple(out), unusable)


def _header_in(lines: Sequence[str]) -> list[str] | None:
    for line in lines:
        if line.lstrip("\ufeff").startswith('"ID"'):
            header = next(csv.reader([line.lstrip("\ufeff")]))
            return header if _NAME in header else None
    return None


def _launches(lines: Iterator[str], marks: set[str]) -> list[_Launch] | None:
    """Return the launches of a file with what is written of each, None where there is no header.

    `marks` takes the decimal marks that its numbers must have.
    """
    header: list[str] | None = None
    for line in lines:
        header = _header_in([line])
        if header is not None:
            break
    if header is None:
        return None
    csv.field_size_limit(MAX_FIELD)
    rows = csv.reader(line for line in lines if not line.startswith("=="))
    at = {name: i for i, name in reversed(list(enumerate(header)))}
    return _long(rows, at, marks) if _METRIC in at and _VALUE in at else _wide(rows, header, at, marks)


def _long(rows: Iterator[list[str]], at: dict[str, int], marks: set[str]) -> list[_Launch]:
    launches: dict[tuple[str, str], _Launch] = {}
    for row in rows:
        if len(row) <= at[_VALUE] or not row[at[_METRIC]]:  # rows of rules have no metric
            continue
        key = row[at[_ID]], _cell(row, at, "Process ID")
        if key not in launches:
            if len(launches) == MAX_LAUNCHES:
                break
            launches[key] = _launch(row, at)
        marks.add(marks_of(row[at[_VALUE]]))
        metric = row[at[_METRIC]]
        if is_read(metric):
            _keep(launches[key], metric, row[at[_VALUE]], _cell(row, at, _UNIT))
    return list(launches.values())


def _wide(rows: Iterator[list[str]], header: list[str], at: dict[str, int], marks: set[str]) -> list[_Launch]:
    numbers = [i for i, name in enumerate(header) if name not in _NO_METRIC]
    columns = [i for i in numbers if is_read(header[i])]
    launches: list[_Launch] = []
    units: list[str] = []
    for row in rows:
        if len(row) < len(header):
            continue
        if not row[at[_ID]].strip():
            units = row
            continue
        if len(launches) == MAX_LAUNCHES:
            break
        launch = _launch(row, at)
        marks.update(marks_of(row[i]) for i in numbers)
        for i in columns:
            if row[i].strip():
                _keep(launch, header[i], row[i], units[i] if units else "")
        launches.append(launch)
    return launches


def _keep(launch: _Launch, metric: str, text: str, unit: str) -> None:
    """Note a metric; of two with one name the percentage (`Memory Throughput` is also bytes per second)."""
    if metric not in launch.values or (unit == "%" and launch.values[metric][1] != "%"):
        launch.values[metric] = text, unit


def _launch(row: list[str], at: dict[str, int]) -> _Launch:
    block, grid = (_sizes(_cell(row, at, name)) for name in ("Block Size", "Grid Size"))
    device = _sizes(_cell(row, at, "Device"))
    return _Launch(row[at[_NAME]], grid, block, device[0] if device and len(device) == 1 else None)


def _cell(row: list[str], at: dict[str, int], name: str) -> str:
    return row[at[name]] if name in at and at[name] < len(row) else ""


def _sizes(text: str) -> tuple[int, ...] | None:
    """Return the numbers of `(128, 1, 1)`."""
    found = tuple(int(part) for part in _SIZES.findall(text[:100]))
    return found or None
