"""The text of the user's source files, as the recorder kept it below `source/` in the run folder.

Anybody may have put files and names there: a name that leads out of the folder, a link, anything that is no regular
file of the size that the recorder keeps, or no text, has no lines.
"""

import re
from dataclasses import field
from pathlib import Path, PurePosixPath

from stepscope.contract.owners import MAX_SOURCE_FILE_BYTES
from stepscope.contract.run_folder import SOURCE_FOLDER
from stepscope.dataclass import dataclass
from stepscope.side_file import read_side_file

_TEXT = re.compile(r"""[rbfuRBFU]{0,2}("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|#.*""")


def code_of(line: str) -> str:
    """Return what of a line is code: texts and comments are a quote, and what is far to the right is cut off.

    >>> code_of("f('a[0]') + x[1]  # times 2")
    'f(") + x[1]  "'
    """
    return _TEXT.sub('"', line[:1000])


def code_text_has_comprehension(text: str) -> bool:
    """Return whether a line of source holds a comprehension as a whole.

    >>> lines = ("y = [f(x) for x in xs]", "for x in f(xs):", "g('[for x in')", "[f(x) for x")
    >>> [code_text_has_comprehension(s) for s in lines]
    [True, False, False, False]
    """
    depth, inside = 0, 0
    for token in re.findall(r"\w+|[\[\](){}]", code_of(text)):
        if token in "([{":
            depth += 1
        elif token in ")]}":
            depth -= 1
            if 0 < inside > depth:
                return True
        elif token == "for" and depth > 0:
            inside = depth
    return False


@dataclass(frozen=True)
class SourceText:
    """The kept source files of a run; each is read when it is first asked for."""

    #: the run folder, None where a run has none
    folder: Path | None = None
    _read: dict[str, tuple[str, ...] | None] = field(default_factory=dict, repr=False, compare=False)

    def lines(self, file: str) -> tuple[str, ...] | None:
        if file not in self._read:
            self._read[file] = self._lines(file)
        return self._read[file]

    def line(self, file: str, number: int) -> str | None:
        """Return one line, counted from 1, without blanks around it; None where it was not kept."""
        found = self.lines(file)
        return found[number - 1].strip() if found is not None and 0 < number <= len(found) else None

    def _lines(self, file: str) -> tuple[str, ...] | None:
        named = PurePosixPath(file)
        if self.folder is None or named.is_absolute() or ".." in named.parts or "\0" in file or not named.parts:
            return None
        try:
            path = (self.folder.resolve() / SOURCE_FOLDER).joinpath(*named.parts)
            if path.resolve() != path:
                return None
            text = read_side_file(path, max_bytes=MAX_SOURCE_FILE_BYTES).decode("utf-8")
        except (OSError, RuntimeError, ValueError):
            return None
        return tuple(line.expandtabs(4) for line in text.split("\n"))
