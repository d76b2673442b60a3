"""Records that hold arrays: compared by identity, shown in one line.

Two arrays compared give an array, so the equality that a dataclass writes for itself raises; and a notebook that prints
a million numbers is of no use to anybody.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

MAX_REPR = 240
_MAX_TEXT = 40


_Record = TypeVar("_Record", bound="ArrayRecord")
_Answer = TypeVar("_Answer")


def once_per_record(question: Callable[[_Record], _Answer]) -> Callable[[_Record], _Answer]:
    """Return the question with its answer remembered for as long as the record it was asked of is there.

    For small answers that several analyses ask for: records never change, so neither do answers.
    """
    answers: WeakKeyDictionary[_Record, _Answer] = WeakKeyDictionary()

    @wraps(question)
    def asked(record: _Record) -> _Answer:
        if record not in answers:
            answers[record] = question(record)
        return answers[record]

    return asked


class ArrayRecord:
    """The base of frozen dataclasses that hold arrays, themselves or in their fields (`eq=False, repr=False`)."""

    def __repr__(self) -> str:
        shown = [f"{f.name}={_short(getattr(self, f.name))}" for f in fields(self) if f.repr]  # type: ignore[arg-type]
        text = f"{type(self).__name__}({', '.join(shown)})"
        return text if len(text) <= MAX_REPR else text[: MAX_REPR - 4] + "...)"


def _short(value: Any) -> str:
    if isinstance(value, ArrayRecord):
        return f"{type(value).__name__}(...)"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list | dict | set | frozenset):
        return f"<{len(value)} in a {type(value).__name__}>" if value else repr(value)
    text = repr(value)
    return text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."


class Row(dict[str, Any]):
    """One row of a table: values by column (`document/rows.py`), times in ns; also read as attributes.

    >>> Row(rank=3, wait_ns=1_500).wait_ns
    1500
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"the row has no {name}; it has {', '.join(self)}") from None


def values_of(record: Any) -> dict[str, Any]:
    """Return the values of a row or a dataclass by name."""
    return record if isinstance(record, dict) else vars(record)


# Dataclasses that are made quickly.
#
# The standard library compiles up to six methods of each class from text. There are over two hundred classes on the way
# to a report, and making them was half of what importing our modules took. Here only `__init__` is compiled, and that
# when the first object of a class is made: most classes have none in most commands. What is made is a dataclass:
# `fields`, `replace`, `asdict`, matching, inheritance and `inspect.signature` work as always.

__all__ = ["dataclass"]

_ABSENT = object()

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True, repr: bool = True
    ) -> type | Callable[[type], type]:
        """Return the class as a dataclass, or what makes it one; the arguments are those of the standard library."""

        def made(cls: type) -> type:
            cls.__doc__ = cls.__doc__ or cls.__name__  # else a text is made of its signature
            cls = dataclasses.dataclass(init=False, repr=False, eq=False)(cls)
            methods: dict[str, Any] = {"__init__": _init_when_used(cls, frozen=frozen)}
            if repr:
                methods["__repr__"] = _shown
            if eq:
                methods["__eq__"], hashed = _comparison(cls)
                methods["__hash__"] = hashed if frozen else None
            methods["__signature__"] = _SignatureWhenAsked()
            if frozen:
                methods |= {"__setattr__": _assign, "__delattr__": _delete}
            for name, method in methods.items():
                if vars(cls).get(name) is None:  # a class that defines __eq__ has None for __hash__
                    setattr(cls, name, method)
            return cls

        return made if cls is None else made(cls)


def _init_when_used(cls: Any, *, frozen: bool) -> Callable[..., None]:

    def made() -> Callable[..., None]:
        cls.__init__ = _init(cls, frozen=frozen)
        return cls.__init__

    def __init__(self: Any, *given: Any, **named: Any) -> None:
        made()(self, *given, **named)

    vars(__init__)["made"] = made
    return __init__


class _SignatureWhenAsked:
    def __get__(self, _: object, cls: Any) -> Any:
        if made := getattr(cls.__init__, "made", None):
            made()
        raise AttributeError("__signature__")


def _init(cls: Any, *, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_set": object.__setattr__, "_ABSENT": _ABSENT}
    takes, sets = ["self"], []
    for field in dataclasses.fields(cls):
        name, value, default = field.name, field.name, ""
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            default, value = " = _ABSENT", f"_make_{name}() if {name} is _ABSENT else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            default = f" = _default_{name}"
        if field.init:
            takes.append(name + default)
        elif field.default_factory is not dataclasses.MISSING:
            value = f"_make_{name}()"
        else:
            continue  # what is not given is the class's own
        sets.append(f" _set(self, {name!r}, {value})\n" if frozen else f" self.{name} = {value}\n")
    after = " self.__post_init__()\n" if hasattr(cls, "__post_init__") else ""
    exec(f"def __init__({', '.join(takes)}):\n{''.join(sets)}{after} return None", known)
    method: Callable[..., None] = known["__init__"]
    method.__qualname__ = f"{cls.__qualname__}.__init__"
    method.__annotations__ = {field.name: field.type for field in dataclasses.fields(cls) if field.init}
    return method


def _comparison(cls: Any) -> tuple[Callable[[Any, object], bool], Callable[[Any], int]]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    several: Callable[[Any], Any] | None = attrgetter(*names) if len(names) > 1 else None

    def values(one: Any) -> Any:
        return several(one) if several is not None else tuple(getattr(one, name) for name in names)

    def __eq__(self: Any, other: object) -> bool:
        return bool(values(self) == values(other)) if other.__class__ is self.__class__ else NotImplemented

    def __hash__(self: Any) -> int:
        return hash(values(self))

    return __eq__, __hash__


@recursive_repr()
def _shown(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _assign(self: Any, name: str, _: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
