"""Records compare by identity and print in one line; our dataclasses are those of the standard library."""

import copy
import dataclasses
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import stepscope
from stepscope.records import MAX_REPR, ArrayRecord, dataclass

JOB_SIDE = tuple(f"stepscope.{room}." for room in ("record", "lab.bench", "bench", "integrations", "demo_train"))
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


@pytest.fixture(scope="module")
def holders() -> set[type]:
    return array_holders(list(desk_dataclasses()))


def test_records_that_hold_arrays_compare_by_identity_and_print_in_one_line(holders: set[type]) -> None:
    assert {"Account", "Run", "Table", "RunSamples", "RankView"} <= {c.__qualname__ for c in holders}
    assert [c.__qualname__ for c in holders if any("__eq__" in vars(base) for base in c.__mro__[:-1])] == []
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


Maker = Callable[..., Any]


def records(make: Maker) -> list[Any]:
    """Return classes of every sort that we have, made by one of the two decorators."""

    @make(frozen=True)
    class Plain:
        """Doc."""

        rank: int
        name: str = "x"
        found: dict[str, int] = dataclasses.field(default_factory=dict)

    @make(frozen=True)
    class Longer(Plain):
        more: float = 0.5
        kind: str = dataclasses.field(default="longer", init=False)
        seen: list[int] = dataclasses.field(default_factory=list, repr=False, compare=False)
        made: set[int] = dataclasses.field(default_factory=set, init=False)

    @make(frozen=True)
    class One:
        value: float

    @make(frozen=True)
    class Empty:
        pass

    @make(frozen=True, eq=False, repr=False)
    class ByIdentity:
        value: int

    @make(frozen=True)
    class OwnWords:
        value: int
        doubled: int = 0

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", 2 * self.value)

        def __repr__(self) -> str:
            return f"<{self.value}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, OwnWords) and abs(self.value - other.value) < 2

    @make
    class Changes:
        rank: int
        name: str = "x"
        found: dict[str, int] = dataclasses.field(default_factory=dict)

    return [Plain, Longer, One, Empty, ByIdentity, OwnWords, Changes]


OURS, STANDARD = records(dataclass), records(dataclasses.dataclass)
BOTH = pytest.mark.parametrize(
    ("ours", "standard"), list(zip(OURS, STANDARD, strict=True)), ids=[c.__name__ for c in OURS]
)
VALUES: dict[str, tuple[Any, ...]] = {
    "Plain": (3,), "Longer": (3, "y"), "One": (1.5,), "ByIdentity": (4,), "OwnWords": (5,), "Changes": (3,),
}  # fmt: skip


@BOTH
def test_same_fields_and_same_call(ours: Any, standard: Any) -> None:
    described = [(f.name, f.type, f.default, f.init, f.repr, f.compare) for f in dataclasses.fields(ours)]
    assert described == [(f.name, f.type, f.default, f.init, f.repr, f.compare) for f in dataclasses.fields(standard)]
    assert list(inspect.signature(ours).parameters) == list(inspect.signature(standard).parameters)
    assert ours.__match_args__ == standard.__match_args__
    assert ours.__init__.__qualname__ == standard.__init__.__qualname__
    with pytest.raises(TypeError) as refused:
        ours(*range(9))
    with pytest.raises(TypeError) as expected:
        standard(*range(9))
    assert str(refused.value) == str(expected.value)


@BOTH
def test_same_values(ours: Any, standard: Any) -> None:
    given = VALUES.get(ours.__name__, ())
    one, other = ours(*given), standard(*given)
    assert dataclasses.asdict(one) == dataclasses.asdict(other) and vars(one) == vars(other)
    assert (one == ours(*given)) is (other == standard(*given))
    assert one != other and one != 3
    assert copy.deepcopy(one).__dict__ == one.__dict__
    if ours.__name__ != "ByIdentity":
        assert repr(one) == repr(other)
    if given:
        name = dataclasses.fields(ours)[0].name
        assert getattr(dataclasses.replace(one, **{name: 7}), name) == 7
        assert (one == dataclasses.replace(one, **{name: 7})) is (other == dataclasses.replace(other, **{name: 7}))


def test_many_threads_may_make_the_first_object() -> None:
    plain, *_ = records(dataclass)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(plain, range(64)))
    assert made == [plain(i) for i in range(64)]
