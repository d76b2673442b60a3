"""Metrics of kernels from the CSV of Nsight Compute, whichever of its forms it has.

    long    a row per launch and metric      ..., "Kernel Name", ..., "Metric Name", "Metric Unit", "Metric Value"
    wide    a row per launch, a column per metric, the units in the first row (`--page raw`)
    old     long, without block, grid, device and CC

Lines before the header (`==PROF== ...`) are skipped. Numbers are written in the user's locale, `1,234.5` or `1.234,5`,
which is detected from all numbers of a file together.
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stepscope.errors import InputError
from stepscope.records import Row, dataclass
from stepscope.side_file import side_file_lines
from stepscope.units import printable

# Metric names of Nsight Compute, old and new, raw and readable.
#
# occupancy      sm__warps_active.avg.pct_of_peak_sustained_active            Achieved Occupancy
# DRAM use       dram__throughput.avg.pct_of_peak_sustained_elapsed           DRAM Throughput (%)
# tensor pipe    sm__pipe_tensor*_cycles_active.avg.pct_of_peak_sustained_*
# SM use         sm__throughput.avg.pct_of_peak_sustained_elapsed             Compute (SM) Throughput, SOL SM
# stalls         smsp__average_warps_issue_stalled_<reason>_per_issue_active.ratio, and the sampled ones

# some percentages of peak go past 100 by a little; none by as much
_MAX_PERCENT = 110.0  # several passes may add up to a little over 100

_OCCUPANCY = ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy")
_DRAM = (
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "DRAM Throughput",
)
_SM = (
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "Compute (SM) Throughput",
    "SM Throughput",
    "SOL SM",
    "SM [%]",
)
_MEMORY = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_access_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "SOL Memory",
    "Memory [%]",
)
_DURATION = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_BYTES_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_TENSOR = re.compile(r"^sm__(?:inst_executed_)?pipe_tensor\w{0,60}\.avg\.pct_of_peak_sustained_(?:active|elapsed)$")
_STALL = re.compile(
    r"^smsp__(?:average_warps_issue_stalled_(\w{1,40}?)_per_issue_active\.ratio"
    r"|average_warp_latency_issue_stalled_(\w{1,40}?)\.ratio|pcsamp_warps_issue_stalled_(\w{1,40}?)(?:\.sum)?)$"
)
# a warp that issued, or could have, is not stalled
_NO_STALL = {"selected", "not_selected", "selected_not_issued"}
_NS = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond", ""), 1.0),
    **dict.fromkeys(("us", "usecond", "microsecond"), 1e3),
    **dict.fromkeys(("ms", "msecond", "millisecond"), 1e6),
    **dict.fromkeys(("s", "second"), 1e9),
}
_SCALE = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 1024.0, "Mi": 1024.0**2, "Gi": 1024.0**3}
_BYTE_UNIT = re.compile(r"^([KMGT]i?|)(?:byte|B)$", re.IGNORECASE)


_READ = frozenset((*_OCCUPANCY, *_DRAM, *_SM, *_MEMORY, *_DURATION, "dram__bytes.sum", *_BYTES_PARTS))


def _is_read(metric: str) -> bool:
    return metric in _READ or bool(_TENSOR.match(metric) or _STALL.match(metric))


def _kernel_metrics(
    name: str,
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
    device: int | None,
    values: Mapping[str, tuple[float, str]],
) -> tuple[Row, int]:
    bad: list[str] = []
    tensor = [value for metric, (value, _) in values.items() if _TENSOR.match(metric)]
    sums = [_size(values, metric, bad) for metric in _BYTES_PARTS]
    parts = sum(known) if len(known := [size for size in sums if size is not None]) == len(sums) else None
    whole = _size(values, "dram__bytes.sum", bad)
    metrics = Row(
        name=name,
        grid=grid,
        block=block,
        device=device,
        duration_ns=_duration(values, bad),
        occupancy_pct=_percent(values, _OCCUPANCY, bad),
        # of the peak: of the busiest unit of the multiprocessors, of the busiest part of the memory system, ...
        sm_pct=_percent(values, _SM, bad),
        memory_pct=_percent(values, _MEMORY, bad),
        dram_pct=_percent(values, _DRAM, bad),
        tensor_pct=_percentage(max(tensor), "tensor", bad) if tensor else None,
        dram_bytes=whole if whole is not None else parts,
        # reasons why warps waited, with their share, the most frequent first
        stalls=_stalls(values),
    )
    return metrics, len(bad)


def _percent(values: Mapping[str, tuple[float, str]], names: tuple[str, ...], bad: list[str]) -> float | None:
    for name in names:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in ("%", ""):  # `Memory Throughput` is also bytes per second
            return _percentage(value, name, bad)
    return None


def _percentage(value: float, name: str, bad: list[str]) -> float | None:
    checked = _checked(value, _MAX_PERCENT, name, bad)
    return None if checked is None else min(checked, 100.0)


def _duration(values: Mapping[str, tuple[float, str]], bad: list[str]) -> float | None:
    for name in _DURATION:
        value, unit = values.get(name, (None, ""))
        if value is not None and unit.strip() in _NS:
            return _checked(value * _NS[unit.strip()], 1 << 60, name, bad)
    return None


def _size(values: Mapping[str, tuple[float, str]], name: str, bad: list[str]) -> float | None:
    value, unit = values.get(name, (None, ""))
    found = _BYTE_UNIT.match(unit.strip() or "byte")
    if value is None or found is None:
        return None
    scale = found.group(1)
    return _checked(value * _SCALE.get(scale[:1].upper() + scale[1:].lower(), 1.0), 1 << 60, name, bad)


def _stalls(values: Mapping[str, tuple[float, str]]) -> tuple[tuple[str, float], ...]:
    families: list[dict[str, float]] = [{}, {}, {}]
    for metric, (value, _) in values.items():
        found = _STALL.match(metric)
        if found and value > 0:
            family = next(i for i, reason in enumerate(found.groups()) if reason)
            families[family][found.group(family + 1)] = value
    reasons = next((f for f in families if f), {})
    reasons = {reason: value for reason, value in reasons.items() if reason not in _NO_STALL}
    total = sum(reasons.values())
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return tuple((reason, value / total) for reason, value in ordered)


def _checked(value: float, most: float, name: str, bad: list[str]) -> float | None:
    if 0 <= value <= most:
        return value
    bad.append(name)
    return None


# Numbers in any locale.
#
# 1,234.5   1234.5   1'234.5        the point is the decimal mark
# 1.234,5   1234,5   1 234,5        the comma is
# 1,234                             either: the other numbers of the file decide

_MAX_CHARACTERS = 64
_NUMERAL = re.compile(r"^[+-]?[\d.,'\s\u00a0\u202f]+(?:[eE][+-]?\d{1,3})?$")
_GROUPS = re.compile(r"['\s\u00a0\u202f]")


def marks_of(text: str) -> str:
    """Return the decimal mark that one number must have, nothing where it could be either or is no number.

    >>> marks_of("12,5"), marks_of("1.234,5"), marks_of("1,234"), marks_of("1,234,567")
    (',', ',', '', '.')
    """
    plain = text.strip()
    if len(plain) > _MAX_CHARACTERS or not _NUMERAL.match(plain):
        return ""
    plain = re.split(r"[eE]", _GROUPS.sub("", plain))[0]
    points, commas = plain.count("."), plain.count(",")
    if points and commas:
        return "." if plain.rfind(".") > plain.rfind(",") else ","
    if points + commas != 1:  # several of one kind are groups of thousands
        return "" if not points + commas else "," if points > 1 else "."
    sign = "." if points else ","
    whole, _, rest = plain.partition(sign)
    groups_of_three = len(rest) == 3 and 1 <= len(whole.lstrip("+-")) <= 3 and whole.lstrip("+-") != "0"
    return "" if groups_of_three else sign


def number(text: str, mark: str) -> float | None:
    """Return a number, None where the text holds none or one that is not finite.

    >>> number("1.234,5", ","), number("1,234.5", "."), number("n/a", "."), number("1e999", ".")
    (1234.5, 1234.5, None, None)
    """
    plain = text.strip()
    if len(plain) > _MAX_CHARACTERS or not _NUMERAL.match(plain):
        return None
    plain = _GROUPS.sub("", plain).replace("," if mark == "." else ".", "")
    try:
        value = float(plain.replace(mark, "."))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


MAX_BYTES = 1 << 30
_MAX_LAUNCHES = 200_000
_ID, _NAME, _METRIC, _UNIT, _VALUE = "ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"
_DETAILS = ("Block Size", "Grid Size", "Device", "Process ID")
_NO_METRIC = {
    _ID, _NAME, *_DETAILS, "Process Name", "Host Name", "Kernel Time", "Context", "Stream", "CC", "Section Name",
    "Rule Name", "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup",
}  # fmt: skip
_SIZES = re.compile(r"\d{1,12}")


class _Launch(NamedTuple):
    name: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    device: int | None
    #: `(number as written, unit)` by metric
    values: dict[str, tuple[str, str]]


@dataclass(frozen=True)
class NcuFile:
    """The launches in one file, in the order they ran."""

    path: Path
    launches: tuple[Row, ...]
    #: values that are no numbers, or numbers that cannot be
    unusable: int


def is_ncu_csv(start: bytes) -> bool:
    """Return whether a file that begins like this is CSV of Nsight Compute."""
    return _header_in(start.decode(errors="replace").splitlines()) is not None


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
    mark = next(iter(marks - {""}), ".")
    if len(marks - {""}) > 1:
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
        metrics, bad = _kernel_metrics(launch.name, launch.grid, launch.block, launch.device, values)
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
    header = next((found for line in lines if (found := _header_in([line])) is not None), None)
    if header is None:
        return None
    csv.field_size_limit(1 << 20)
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
            if len(launches) == _MAX_LAUNCHES:
                break
            launches[key] = _launch(row, at)
        marks.add(marks_of(row[at[_VALUE]]))
        metric = row[at[_METRIC]]
        if _is_read(metric):
            _keep(launches[key], metric, row[at[_VALUE]], _cell(row, at, _UNIT))
    return list(launches.values())


def _wide(rows: Iterator[list[str]], header: list[str], at: dict[str, int], marks: set[str]) -> list[_Launch]:
    numbers = [i for i, name in enumerate(header) if name not in _NO_METRIC]
    columns = [i for i in numbers if _is_read(header[i])]
    launches: list[_Launch] = []
    units: list[str] = []
    for row in rows:
        if len(row) < len(header):
            continue
        if not row[at[_ID]].strip():
            units = row
            continue
        if len(launches) == _MAX_LAUNCHES:
            break
        launch = _launch(row, at)
        marks.update(marks_of(row[i]) for i in numbers)
        for i in columns:
            if row[i].strip():
                _keep(launch, header[i], row[i], units[i] if units else "")
        launches.append(launch)
    return launches


def _keep(launch: _Launch, metric: str, text: str, unit: str) -> None:
    if metric not in launch.values or (unit == "%" and launch.values[metric][1] != "%"):
        launch.values[metric] = text, unit


def _launch(row: list[str], at: dict[str, int]) -> _Launch:
    block, grid = (_sizes(_cell(row, at, name)) for name in ("Block Size", "Grid Size"))
    device = _sizes(_cell(row, at, "Device"))
    return _Launch(row[at[_NAME]], grid, block, device[0] if device and len(device) == 1 else None, {})


def _cell(row: list[str], at: dict[str, int], name: str) -> str:
    return row[at[name]] if name in at and at[name] < len(row) else ""


def _sizes(text: str) -> tuple[int, ...] | None:
    found = tuple(int(part) for part in _SIZES.findall(text[:100]))
    return found or None
