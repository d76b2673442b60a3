"""One setting of a configuration: its type, its limits, and the message when a value does not fit.

    @dataclass(frozen=True)
    class TrainConfig:
        steps: int = setting(100, "optimizer steps", least=1)

    section(TrainConfig, {"stepps": 3}, name="train", where=...)
    -> UsageError: job.toml, line 2: train.stepps: no such setting, did you mean steps? ...

Standard library only: the command line reads configurations without torch.
"""

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stepscope.errors import UsageError

_T = TypeVar("T")
# says in which file and line a setting was given, by its dotted name
Where = Callable[[str], str]

_NOTHING = ("none", "null")


def setting(
    default: Any, doc: str, *, least: float | None = None, above: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    """Return the field of a setting with its default, its meaning and what it may be."""
    return dataclasses.field(default=default, metadata={"doc": doc, "least": least, "above": above, "choices": choices})


def section(kind: type[_T], values: Any, *, name: str, where: Where, elsewhere: Mapping[str, str]) -> _T:
    """Return a section made of the given values, each checked; what is not given keeps its default.

    `elsewhere` are the names of all settings with their section, for one that was put into the wrong section.
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{where(name)}: {name} has to hold settings by name, not {values!r}")
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    made = {}
    for key, value in values.items():
        dotted = f"{name}.{key}"
        if key not in fields:
            meant = f"no such setting, did you mean {elsewhere[key]}?" if key in elsewhere else None
            raise UsageError(f"{where(dotted)}: {dotted}: {meant or no_such(str(key), list(fields))}")
        made[key] = _fitting(value, hints[key], fields[key].metadata, complain=_complaint(dotted, where))
    return kind(**made)


def no_such(name: str, known: list[str]) -> str:
    """Return what to say of a name that nobody knows, with the nearest that somebody does."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    meant = f", did you mean {near[0]}?" if near else ";"
    return f"no such setting{meant} known: {', '.join(known)}"


def _fitting(value: Any, hint: Any, about: Mapping[str, Any], *, complain: Callable[[str, Any], UsageError]) -> Any:
    hint, optional = without_none(hint)
    if optional and (value is None or (isinstance(value, str) and value.lower() in _NOTHING)):
        return None
    expected = expectation(hint, about, optional=optional)
    made = _converted(value, hint)
    if made is None or not _within(made, about):
        raise complain(expected, value)
    return made


def expectation(hint: Any, about: Mapping[str, Any], *, optional: bool) -> str:
    """Return in words what a setting may be: "a whole number of at least 1", "one of fp32, bf16"."""
    if about.get("choices"):
        words = f"one of {', '.join(about['choices'])}"
    elif typing.get_origin(hint) is tuple:
        kinds = typing.get_args(hint)
        words = "a list of numbers" if Ellipsis in kinds else f"a list of {len(kinds)} numbers"
    else:
        words = _WORDS[hint]
    if about.get("least") is not None:
        words += f" of at least {about['least']:g}"
    if about.get("above") is not None:
        words += f" above {about['above']:g}"
    return f"{words}, or none" if optional else words


_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    dict[str, Any]: "settings by name",
}


def _complaint(dotted: str, where: Where) -> Callable[[str, Any], UsageError]:
    return lambda expected, found: UsageError(f"{where(dotted)}: {dotted} has to be {expected}, not {found!r}")


def without_none(hint: Any) -> tuple[Any, bool]:
    """Return a type without None, and whether it allowed None."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    (kind,) = (part for part in typing.get_args(hint) if part is not type(None))
    return kind, True


def _converted(value: Any, hint: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        return _numbers(value, hint)
    if typing.get_origin(hint) is dict:
        return dict(value) if isinstance(value, Mapping) else None
    if hint is float:
        return _number(value)
    if hint is int:
        return value if isinstance(value, int) and not isinstance(value, bool) else None
    return value if isinstance(value, hint) else None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _numbers(value: Any, hint: Any) -> tuple[Any, ...] | None:
    kinds = typing.get_args(hint)
    if not isinstance(value, list | tuple) or (kinds[-1] is not Ellipsis and len(value) != len(kinds)):
        return None
    made = tuple(_converted(v, kinds[0]) for v in value)
    return None if None in made else made


def _within(value: Any, about: Mapping[str, Any]) -> bool:
    values = value if isinstance(value, tuple) else (value,)
    least, above = about.get("least"), about.get("above")
    return (
        (not about.get("choices") or value in about["choices"])
        and (least is None or all(v >= least for v in values))
        and (above is None or all(v > above for v in values))
    )
