"""Stacks of the user's frames, each kept once: a call adds a frame to the stack that it was made from.

    calls     train.py:40 step -> torch/nn/modules/module.py:1778 -> ... -> model.py:12 forward -> functional.py:88 gelu
    kept      train.py:40 step, model.py:12 forward, functional.py:88 gelu

Of libraries only the first frame below the user's innermost one is kept; a module's call and decorators
say nothing of the work and are passed over.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.record.owners.places import LIBRARY, OURS, PLUMBING, USER, Places

EMPTY = 0


@dataclass(frozen=True)
class StackTable:
    """Stacks by number of frame, frames by number of file."""

    root: str
    files: list[str]
    frames: list[list[int | str]]
    stacks: list[list[int]]
    user_files: list[str]


class Stacks:
    """Numbered stacks and the frames and files in them; stack 0 is empty."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self._frames: dict[tuple[str, int, str, int, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], int], int] = {((), -1): EMPTY}
        self._contents: list[tuple[tuple[int, ...], int]] = [((), -1)]
        self._pushed: dict[tuple[int, str, str, int, int], int] = {}

    def push(self, stack: int, file: str, function: str, line: int, line_to: int) -> int:
        """Return the stack that has one frame more, or the same one where that frame is not kept."""
        key = (stack, file, function, line, line_to)
        found = self._pushed.get(key)
        if found is None:
            found = self._pushed[key] = self._with_frame(stack, file, function, line, line_to)
        return found

    def _with_frame(self, stack: int, file: str, function: str, line: int, line_to: int) -> int:
        path, kind = self.places.of(file)
        users, library = self._contents[stack]
        if kind in (OURS, PLUMBING) or (kind == LIBRARY and (library != -1 or not users)):
            return stack
        exact = line if kind == LIBRARY else line_to
        frame = self._frames.setdefault((path, line, function, int(kind == USER), exact), len(self._frames))
        content = ((*users, frame), -1) if kind == USER else (users, frame)
        number = self._stacks.setdefault(content, len(self._contents))
        if number == len(self._contents):
            self._contents.append(content)
        return number

    def table(self, wanted: Sequence[int]) -> StackTable:
        """Return the wanted stacks, in that order, with their frames and files as the file has them."""
        kept = [self._contents[stack] for stack in wanted]
        contents = [[*users, *([library] if library != -1 else [])] for users, library in kept]
        keys = list(self._frames)
        used = list(dict.fromkeys(frame for stack in contents for frame in stack))
        number = {frame: i for i, frame in enumerate(used)}
        paths = list(dict.fromkeys(keys[frame][0] for frame in used))
        users = list(dict.fromkeys(keys[frame][0] for frame in used if keys[frame][3]))
        root = root_of(users)
        file = {path: i for i, path in enumerate(paths)}
        rows = [keys[frame] for frame in used]
        return StackTable(
            root,
            [below(path, root) for path in paths],
            [[file[path], line, function, user, to] for path, line, function, user, to in rows],
            [[number[frame] for frame in stack] for stack in contents],
            [below(path, root) for path in users],
        )


def root_of(paths: list[str]) -> str:
    """Return the folder that all files of the user lie in, or the main script's where that would be too wide."""
    main = _main_folder()
    folders = [str(Path(path).parent) for path in paths if Path(path).is_absolute()]
    if not folders:
        return main
    shared = os.path.commonpath([*folders, main] if _is_project(main, folders) else folders)
    return shared if _is_narrow(shared) else main


def below(path: str, root: str) -> str:
    """Return a path relative to the root where it lies below it."""
    return path[len(root) :].lstrip(os.sep) if path.startswith(root.rstrip(os.sep) + os.sep) else path


def _main_folder() -> str:
    import __main__

    path = getattr(__main__, "__file__", None)
    return str(Path(path).absolute().parent) if path else str(Path.cwd())


def _is_project(main: str, folders: list[str]) -> bool:
    """Return whether the main script's folder is one of the user's: that of a launcher in `bin` is not."""
    return any(folder.startswith(main) or main.startswith(folder) for folder in folders)


def _is_narrow(folder: str) -> bool:
    return len(Path(folder).parts) > 2 and not str(Path.home()).startswith(folder)  # more than / and one name
