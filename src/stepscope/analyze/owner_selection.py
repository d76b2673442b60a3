"""What does an owner's name stand for: `train.py:42`, `train.py:40-44`, `module:layers.*.bn`?

A line stands for everything that has it anywhere in its stack, in backward also for what the line of `loss.backward()`
called. A module stands for itself and the modules inside it; `*` in a pattern is one name or part of one between two
dots, and the pattern may begin at any of them: `bn` is every module of that name.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from stepscope.analyze.ownership import OwnedWork, Ownership
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError

_MODULE = "module:"
_LINE = re.compile(r"^(?P<file>.+):(?P<first>\d{1,9})(-(?P<last>\d{1,9}))?$")
_MAX_NAMED = 6

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class OwnerName:
    """A line, some lines in a row, or modules by pattern."""

    text: str
    file: str = ""
    first: int = 0
    last: int = 0
    pattern: str = ""

    def chosen(self, owned: Ownership, things: OwnedWork) -> Mask:
        """Return which of some things of a rank are the owner's."""
        if self.pattern:
            fits = np.array([*(_module_fits(path, self.pattern) for path in owned.modules), False], bool)
            return fits[things.module]
        holding = owned.holding([i for i, f in enumerate(owned.frames) if self._holds(f.file, f.line)])
        return holding[things.stack] | holding[things.caller]

    def _holds(self, file: str, line: int) -> bool:
        return self.first <= line <= self.last and _same_file(file, self.file)


def owner_name(text: str, owned: Sequence[Ownership]) -> OwnerName:
    """Return what a name stands for in a run; a `UsageError` that says what there is where it stands for nothing."""
    if text.startswith(_MODULE):
        return _module(text, owned)
    found = _LINE.match(text)
    if found is None:
        raise UsageError(f"{text}: write FILE:LINE such as train.py:42, or module:GLOB such as module:layers.*.bn")
    first = int(found["first"])
    name = OwnerName(text, found["file"], first, int(found["last"] or first))
    files = {f.file for one in owned for f in one.frames if _same_file(f.file, name.file)}
    if not files:
        raise UsageError(f"{text}: no line of {name.file} ran in the recorded steps; {_files(name.file, owned)}")
    if len(files) > 1 and name.file not in files:
        listed = ", ".join(sorted(files)[:_MAX_NAMED])
        raise UsageError(f"{text}: several files end in {name.file} ({listed}); say which")
    lines = sorted({f.line for one in owned for f in one.frames if f.file in files})
    if not any(name.first <= line <= name.last for line in lines):
        listed = ", ".join(map(str, sorted(sorted(lines, key=lambda line: abs(line - first))[:_MAX_NAMED])))
        raise UsageError(f"{text}: nothing recorded was called from that line; lines of that file near it: {listed}")
    return name


def _module(text: str, owned: Sequence[Ownership]) -> OwnerName:
    pattern = text.removeprefix(_MODULE)
    paths = {path for one in owned for path in one.modules if path}
    if not pattern or not any(_module_fits(path, pattern) for path in paths):
        listed = ", ".join(_near(pattern, sorted(paths))) or "none, because no module was recorded"
        raise UsageError(f"{text}: no module of that name ran in the recorded steps; there are {listed}")
    return OwnerName(text, pattern=pattern)


def _same_file(path: str, given: str) -> bool:
    """Return whether a path is the given one or ends in it.

    >>> same_file("data/augment.py", "augment.py"), same_file("mytrain.py", "train.py")
    (True, False)
    """
    plain = given.removeprefix("./")
    return path == plain or path.endswith("/" + plain)


def _module_fits(path: str, pattern: str) -> bool:
    """Return whether a module is one of a pattern's, or inside one.

    >>> [module_fits(p, "layers.*.bn") for p in ("model.layers.3.bn", "layers.3.bn.scale", "layers.3.mlp.bn")]
    [True, True, False]
    """
    names, wanted = path.split("."), pattern.split(".")
    starts = range(len(names) - len(wanted) + 1)
    return any(all(fnmatchcase(n, w) for n, w in zip(names[at:], wanted, strict=False)) for at in starts)


def _files(given: str, owned: Sequence[Ownership]) -> str:
    near = _near(given, sorted({f.file for one in owned for f in one.frames if f.is_user}))
    return f"files with recorded lines are {', '.join(near)}" if near else "no file of the user's has recorded lines"


def _near(given: str, known: list[str]) -> list[str]:
    from difflib import get_close_matches  # only for names that are wrong

    return get_close_matches(given, known, n=_MAX_NAMED, cutoff=0.3) or known[:_MAX_NAMED]
