"""Our dataclasses are those of the standard library in all but the time it takes to make them."""

import copy
import dataclasses
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stepscope.dataclass import dataclass

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
    "Plain": (3,),
    "Longer": (3, "y"),
    "One": (1.5,),
    "ByIdentity": (4,),
    "OwnWords": (5,),
    "Changes": (3,),
}


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


@BOTH
def test_what_is_frozen_can_be_neither_set_nor_deleted(ours: Any, standard: Any) -> None:
    if ours.__name__ == "Changes":
        one = ours(1)
        one.rank = 2
        del one.name
        assert one.rank == 2 and "name" not in vars(one)
        return
    one, other = (made(*VALUES.get(made.__name__, ())) for made in (ours, standard))
    for change in (lambda x: setattr(x, "value", 1), lambda x: delattr(x, "value")):
        with pytest.raises(dataclasses.FrozenInstanceError) as refused:
            change(one)
        with pytest.raises(dataclasses.FrozenInstanceError) as expected:
            change(other)
        assert str(refused.value) == str(expected.value)


def test_many_threads_may_make_the_first_object() -> None:
    plain, *_ = records(dataclass)
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(plain, range(64)))
    assert made == [plain(i) for i in range(64)]
