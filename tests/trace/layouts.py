"""Random traces in random layouts: what any writer of trace JSON may do, and more than Kineto does."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from stepscope.trace.table import ARGS


class Raw(str):
    """A JSON value given by its text: a number in a spelling of its own, NaN."""


@dataclass(frozen=True)
class Pairs:
    """An object as its members in order, keys possibly more than once."""

    members: tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class Layout:
    """How a trace is written."""

    newline: str = "\n"
    indent: int | None = 2
    """None: no line breaks at all"""
    one_key_per_line: bool = True
    colon: str = ": "
    comma: str = ", "
    escape: str = "none"
    """none, non-ascii, or any (also letters, also in keys)"""
    byte_order_mark: bool = False
    top_array: bool = False
    events_at: int = 0
    """how many of the other top-level fields come first"""
    seed: int = field(default=0, compare=False)


layouts = st.builds(
    Layout, newline=st.sampled_from(["\n", "\r\n"]), indent=st.sampled_from([None, 0, 1, 2, 4]),
    one_key_per_line=st.booleans(), colon=st.sampled_from([":", ": ", " :\t"]),
    comma=st.sampled_from([",", ", ", " , "]), escape=st.sampled_from(["none", "non-ascii", "any"]),
    byte_order_mark=st.booleans(), top_array=st.booleans(), events_at=st.integers(0, 4), seed=st.integers(0, 2**32),
)  # fmt: skip

_text = st.text(st.characters(codec="utf-8"), max_size=40) | st.text('ab\\"/{}[],: \n\t\u2028é😀', max_size=30)
_digits = st.text("0123456789", min_size=1, max_size=24)


@st.composite
def numbers(draw: st.DrawFn) -> Raw:
    """Return a number in any spelling JSON allows."""
    whole = draw(
        st.integers(0, 10**6).map(str) | _digits | st.sampled_from(["0", "9" * 400, str(2**63), str(2**63 - 1)])
    )
    sign = draw(st.sampled_from(["", "", "", "-"]))
    fraction = draw(st.sampled_from(["", "", ".0", ".5", ".000", ".0005"]) | _digits.map(lambda d: "." + d))
    exponent = draw(st.sampled_from(["", "", "", "e3", "E-2", "e+0", "e-400", "e999", "e99999999999"]))
    return Raw(sign + (whole.lstrip("0") or "0") + fraction + exponent)


_usual_times = st.integers(0, 10**16).map(lambda ns: Raw(f"{ns // 1000}.{ns % 1000:03d}"))
_odd = st.sampled_from(
    [None, True, False, Raw("NaN"), Raw("-Infinity"), "", "7", "-12", "0x1F", "abc", "1.5", Pairs(())]
)
_scalars = _text | numbers() | _odd | st.integers(-(2**64), 2**64)
_values = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(_text, inner), max_size=3).map(lambda members: Pairs(tuple(members)))
    ),
    max_leaves=6,
)
_times = _usual_times | _usual_times | _usual_times | numbers() | _odd
_arg_keys = st.sampled_from([key for column in ARGS for key in column.keys] + ["Record function id", "é", ""]) | _text
_args = st.lists(st.tuples(_arg_keys, _values), max_size=6).map(lambda members: Pairs(tuple(members)))
_fields = {
    "ph": st.sampled_from("XXXXXXiMsfC") | _odd, "cat": st.sampled_from(["cpu_op", "kernel", "Kernel"]) | _values,
    "name": _text | _values, "pid": st.integers(0, 10**6) | _values, "tid": st.integers(0, 10**6) | _values,
    "ts": _times, "dur": _times, "args": _args | _args | _args | _values, "id": _values,
}  # fmt: skip


@st.composite
def events(draw: st.DrawFn) -> Pairs:
    """Return one event: mostly sound, with anything JSON allows in any place."""
    names = draw(st.permutations(list(_fields)))
    names = [*names[: draw(st.sampled_from([9, 9, 9, 4]))], *draw(st.lists(st.sampled_from(names), max_size=2))]
    return Pairs(tuple((name, draw(_fields[name])) for name in names))


headers = st.fixed_dictionaries(
    {"schemaVersion": st.just(1), "displayTimeUnit": st.just("ms")},
    optional={
        "distributedInfo": st.just({"rank": 3, "world_size": 8, "traceEvents": [{"ph": "no"}]}),
        "baseTimeNanoseconds": st.sampled_from([0, 1790857026000000000]),
        "traceName": _text,
    },
)


def written(trace_events: list[Any], header: dict[str, Any], layout: Layout) -> bytes:
    """Return the bytes of a trace file."""
    writer = _Writer(layout)
    if layout.top_array:
        text = writer.value(trace_events, 0, broken=True)
    else:
        fields = [(key, _plain(value)) for key, value in header.items()]
        fields.insert(layout.events_at, ("traceEvents", trace_events))
        text = writer.value(Pairs(tuple(fields)), 0, broken=True)
    return ("\ufeff" if layout.byte_order_mark else "").encode() + text.encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return Pairs(tuple((key, _plain(inner)) for key, inner in value.items()))
    return [_plain(inner) for inner in value] if isinstance(value, list) else value


class _Writer:
    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._random = random.Random(layout.seed)

    def value(self, value: Any, depth: int, *, broken: bool = False) -> str:
        if isinstance(value, Raw):
            return str(value)
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Pairs):
            breaks = broken or self._layout.one_key_per_line
            members = [
                (self._string(key) if depth else json.dumps(key))
                + self._layout.colon
                + self.value(inner, depth + 1, broken=broken and key == "traceEvents")
                for key, inner in value.members
            ]
            return self._bracketed("{", members, "}", depth, breaks=breaks)
        if isinstance(value, list):
            return self._bracketed("[", [self.value(inner, depth + 1) for inner in value], "]", depth, breaks=broken)
        return json.dumps(value)

    def _bracketed(self, opening: str, parts: list[str], closing: str, depth: int, *, breaks: bool) -> str:
        if self._layout.indent is None or not breaks or not parts:
            return opening + self._layout.comma.join(parts) + closing
        line = self._layout.newline + " " * self._layout.indent * (depth + 1)
        end = self._layout.newline + " " * self._layout.indent * depth
        return opening + line + ("," + line).join(parts) + end + closing

    def _string(self, text: str) -> str:
        if self._layout.escape == "any" and not text[:1].isdigit() and text[:1] != "-":
            return '"' + "".join(map(self._perhaps_escaped, text)) + '"'
        return json.dumps(text, ensure_ascii=self._layout.escape != "none")

    def _perhaps_escaped(self, letter: str) -> str:
        if ord(letter) < 0x10000 and self._random.random() < 0.2:
            return f"\\u{ord(letter):04x}"
        return json.dumps(letter)[1:-1]
