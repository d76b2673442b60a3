"""The same table as the reader's, by other means: the standard library's json with exact decimals, event by event."""

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from stepscope.trace.table import ARGS, NO_STRING, NONE_NS, STRING_ID_BASE, ArgKind, Trace

LIMIT = 2**63
# numbers that some tools write as text
_NUMBER, _NUMBER_ID = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?"), re.compile(r"0|[1-9]\d{0,15}")
_COLUMN = {key: column for column in ARGS for key in column.keys}


class _Number(Decimal):
    """A number that remembers its spelling."""

    raw: str

    def __new__(cls, text: str) -> "_Number":
        number = super().__new__(cls, text)
        number.raw = text
        return number


class _Object(dict[str, Any]):
    """An object in which the last of equal keys counts; `pairs` has them all."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


@dataclass(frozen=True)
class _Constant:
    """NaN or Infinity."""

    raw: str


DECODER = json.JSONDecoder(object_pairs_hook=_Object, parse_float=_Number, parse_int=_Number, parse_constant=_Constant)


def rows(text: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return one dict per row that the reader must give for a valid trace, and the counts of `Quality`."""
    fields, base = {}, 0
    start = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    if text[start] == "{":
        fields = DECODER.raw_decode(text, start)[0]
        base = int(fields.get("baseTimeNanoseconds", 0))
    kept, counts = [], dict.fromkeys(("bad_time", "negative_duration", "bad_args"), 0)
    for event, offset in located_events(text):
        row = _row(event, offset, base, counts)
        if row:
            kept.append(row)
    return kept, counts


def located_events(text: str) -> list[tuple[dict[str, Any], int]]:
    """Return every event with the byte where it starts."""
    at = _events_start(text)
    found: list[Any] = []
    offset = before = 0
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        if text[at] == "]":
            return found
        offset += len(text[before:at].encode())
        before = at
        event, at = DECODER.raw_decode(text, at)
        found.append((event, offset))


def _events_start(text: str) -> int:
    at = len(text) - len(text.lstrip("\ufeff \t\r\n"))
    if text[at] == "[":
        return at + 1
    at += 1
    while True:
        while text[at] in " \t\r\n,":
            at += 1
        key, at = DECODER.raw_decode(text, at)
        while text[at] in " \t\r\n:":
            at += 1
        if key == "traceEvents":
            return at + 1
        _, at = DECODER.raw_decode(text, at)


def _row(event: dict[str, Any], offset: int, base: int, counts: dict[str, int]) -> dict[str, Any] | None:
    ph = event.get("ph")
    ph = ph.encode()[0] if isinstance(ph, str) and ph else 0
    try:
        ts, dur = _time(event.get("ts")), _time(event.get("dur"))
        if ph == ord("X") and NONE_NS in (ts, dur):
            raise ValueError
    except ValueError:
        counts["bad_time"] += 1
        return None
    if dur < 0 and dur != NONE_NS:
        counts["negative_duration"] += 1
        return None
    args = event.get("args")
    return {
        "ph": ph, "cat": _text(event.get("cat")), "name": _text(event.get("name")), "pid": _id(event.get("pid")),
        "tid": _id(event.get("tid")), "ts_ns": ts if ts == NONE_NS else ts + base, "dur_ns": dur, "offset": offset,
        "args": _args(args, counts) if isinstance(args, _Object) else {},
    }  # fmt: skip


def _time(value: Any) -> int:
    if value is None:
        return NONE_NS
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if not isinstance(value, Decimal):
        raise ValueError
    ns = _scaled(value, 3)
    if ns is None:
        raise ValueError
    return ns


def _scaled(value: Decimal, places: int) -> int | None:
    if not value or value.adjusted() + places < -1:
        return 0
    if value.adjusted() + places > 20:
        return None
    sign, digits, exponent = value.as_tuple()
    shift = int(exponent) + places
    number = int("".join(map(str, digits)))
    if shift >= 0:
        number *= 10**shift
    else:
        number, rest = divmod(number, 10**-shift)
        number += 2 * rest >= 10**-shift
    return None if number >= LIMIT else -number if sign else number


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return _Json(value)


class _Json:
    """A value kept as JSON text: compared by what it says."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, text: object) -> bool:
        return isinstance(text, str) and DECODER.decode(text) == self.value

    def __repr__(self) -> str:
        return f"JSON {self.value!r}"


def _id(value: Any) -> Any:
    if isinstance(value, str) and _NUMBER_ID.fullmatch(value):
        return int(value)
    if isinstance(value, Decimal):
        number = _integer(value)
        return _Json(value) if number is None or number <= STRING_ID_BASE // 2 else number
    return "" if value is None else _text(value)


def _integer(value: Decimal) -> int | None:
    number = _scaled(value, 0)
    return number if number is not None and number == value else None


def _args(args: _Object, counts: dict[str, int]) -> dict[str, Any]:
    kept: dict[str, Any] = {}
    for key, value in args.pairs:
        column = _COLUMN.get(key)
        if column is None:
            continue
        kept.pop(column.name, None)
        good = None if value is None else _argument(value, column.kind)
        if good is not None:
            kept[column.name] = good
        elif value is not None and column.kind is ArgKind.INT:
            counts["bad_args"] += 1
    floats = {key: value for key, value in args.pairs if key in _COLUMN and _COLUMN[key].kind is ArgKind.FLOAT}
    counts["bad_args"] += sum(value is not None and _finite(value) is None for value in floats.values())
    return kept


def _argument(value: Any, kind: ArgKind) -> Any:
    if kind is ArgKind.TEXT:
        return _text(value)
    if kind is ArgKind.FLOAT:
        return _finite(value)
    if isinstance(value, str):
        value = _number_in(value)
    if isinstance(value, Decimal):
        return _integer(value)
    return value if type(value) is int else None


def _number_in(text: str) -> int | Decimal | None:
    if re.fullmatch("0[xX][0-9a-fA-F]+", text):
        number = int(text, 16)
        return number if number < LIMIT else None
    return Decimal(text) if re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", text) else None


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, str | Decimal) else float("nan")
    except ValueError:
        return None
    return number if abs(number) != float("inf") and number == number else None


def assert_same(trace: Trace, expected: list[dict[str, Any]]) -> None:
    """Compare a table with the oracle's rows, on every column."""
    assert trace.num_events == len(expected)
    for column in ("ph", "ts_ns", "dur_ns", "offset"):
        assert trace[column].tolist() == [row[column] for row in expected], column
    for column in ("cat", "name"):
        found = [None if i == NO_STRING else trace.strings[i] for i in trace[column].tolist()]
        wanted = [row[column] for row in expected]
        assert all(w == f for w, f in zip(wanted, found, strict=True)), column
    for column in ("pid", "tid"):
        found = [trace.strings[i - STRING_ID_BASE] if i < STRING_ID_BASE // 2 else i for i in trace[column].tolist()]
        assert all(row[column] == f for row, f in zip(expected, found, strict=True)), column
    for arg in ARGS:
        _assert_same_arg(trace, arg.name, arg.kind, expected)


def _assert_same_arg(trace: Trace, name: str, kind: ArgKind, expected: list[dict[str, Any]]) -> None:
    sparse = trace.arg(name)
    wanted = [(i, row["args"][name]) for i, row in enumerate(expected) if name in row["args"]]
    assert sparse.rows.tolist() == [i for i, _ in wanted], name
    values: list[Any] = sparse.values.tolist()
    if kind is ArgKind.TEXT:
        values = [trace.strings[i] for i in values]
    if kind is ArgKind.FLOAT:
        values = sparse.values.view("float64").tolist()
    assert all(w == v for (_, w), v in zip(wanted, values, strict=True)), name
