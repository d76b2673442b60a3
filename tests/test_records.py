"""Records that hold arrays compare by identity and print in one line: every one of them, found by its types."""

import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepscope
from stepscope.records import MAX_REPR, ArrayRecord

JOB_SIDE = ("stepscope.record.", "stepscope.bench.", "stepscope.integrations.")
"""no arrays there: the standard library and torch only"""


def desk_dataclasses() -> Iterator[type]:
    for found in pkgutil.walk_packages(stepscope.__path__, "stepscope."):
        if (found.name + ".").startswith(JOB_SIDE) or found.name.endswith("__main__"):
            continue
        for one in vars(import_module(found.name)).values():
            if inspect.isclass(one) and is_dataclass(one) and one.__module__ == found.name:
                yield one


def holds_array(kind: Any, holders: set[type]) -> bool:
    """Return whether a value of this type is an array, a record that holds one, or a collection of such."""
    if type(kind).__name__ == "TypeAliasType":  # numpy's NDArray from Python 3.12 on
        return holds_array(kind.__value__, holders)
    if isinstance(kind, types.GenericAlias | typing._GenericAlias | types.UnionType):  # type: ignore[attr-defined]
        origin = typing.get_origin(kind)
        if origin is Callable:
            return False
        return holds_array(origin, holders) or any(holds_array(one, holders) for one in typing.get_args(kind))
    return inspect.isclass(kind) and (issubclass(kind, np.ndarray) or kind in holders)


def resolved_hints(one: type) -> list[Any]:
    try:
        return list(typing.get_type_hints(one).values())
    except NameError:  # a command's record, whose types are imported for the checker only
        return []


def array_holders(classes: list[type]) -> set[type]:
    hints = {one: resolved_hints(one) for one in classes}
    holders: set[type] = set()
    while True:
        more = {c for c in classes if any(holds_array(kind, holders) for kind in hints[c])}
        if more == holders:
            return holders
        holders = more


def compares_fields(one: type) -> bool:
    return vars(one).get("__eq__") is not None or any("__eq__" in vars(base) for base in one.__mro__[1:-1])


@pytest.fixture(scope="module")
def holders() -> set[type]:
    return array_holders(list(desk_dataclasses()))


def test_records_that_hold_arrays_compare_by_identity(holders: set[type]) -> None:
    assert {"Account", "Run", "Table", "RunSamples", "RankView"} <= {c.__qualname__ for c in holders}
    assert [c.__qualname__ for c in holders if compares_fields(c)] == []


def test_records_that_hold_arrays_print_in_one_line(holders: set[type]) -> None:
    assert [c.__qualname__ for c in holders if not issubclass(c, ArrayRecord)] == []
    own = {c.__qualname__ for c in holders if "__repr__" in vars(c)}
    assert own <= {"Table"}, "the repr that a dataclass writes for itself shows every number"


def test_repr_is_short_whatever_a_record_holds() -> None:
    @dataclass(frozen=True, eq=False, repr=False)
    class Big(ArrayRecord):
        values: npt.NDArray[np.float64]
        name: str
        rows: tuple[int, ...]

    shown = repr(Big(np.zeros((1000, 3)), "x" * 10_000, tuple(range(9))))
    assert shown.endswith("Big(values=float64[1000, 3], name='" + "x" * 36 + "..., rows=<9 in a tuple>)")
    assert len(repr(Big(np.zeros(1), "x", ()))) <= MAX_REPR
