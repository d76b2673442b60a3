"""On which line was an operator that raised no call? Told by the source between the calls before and after it.

    44  rows = torch.cat([d, e], 1)                    a call: known
    45  if "outer" in names:
    46      products = (rows[:, None] * rows).sum(-1)  `*` raises none: it ran after the call in 44, before `sum` in 46

Of the lines from the one call to the other, those are left that hold the symbol of such an operator. Where that is one
line, it is known; where there are several, the operator is between the first and the last of them. Lines alone are
looked at, never parsed as a program: anybody may have put the text there.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from keyword import iskeyword

from stepscope.run.owners import Frame, RankOwners
from stepscope.run.source_text import SourceText, code_of

MAX_LINES = 60
"""between two calls; further apart they say nothing of each other"""

_SYMBOLS = {
    **dict.fromkeys(("sub", "rsub", "neg"), "-"),
    **dict.fromkeys(("div", "true_divide", "reciprocal"), "/"),
    **dict.fromkeys(("bitwise_and", "__and__"), "&"),
    **dict.fromkeys(("bitwise_or", "__or__"), "|"),
    **dict.fromkeys(("bitwise_xor", "__xor__"), "^"),
    **dict.fromkeys(("index", "index_put", "copy", "fill"), "["),
    "add": "+",
    "mul": "*",
    "remainder": "%",
    "bitwise_not": "~",
    "floor_divide": "//",
    "pow": "**",
    "matmul": "@",
    "lt": "<",
    "gt": ">",
    "le": "<=",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}
"""of an operator, without `aten::` and the underscore of one that works in place"""
_VIEWS = dict.fromkeys(("select", "slice", "unsqueeze", "alias"), "[")
"""of those that move nothing: they tell a line only where nothing else does"""

_OPERATORS = frozenset(_SYMBOLS.values())
_TOKEN = re.compile(r"\w[\w.]*|\*\*|//|->|[<>=!]=|<<|>>|[-+*/%@&|^~<>\[]|\S")
_OPERAND_ENDS = re.compile(r'[\w)\]}"]$')
"""before an operator that has a left side; not in `f(*args)`, `x = -1`, `return [1, 2]`"""


def with_operator_lines(owners: RankOwners, source: SourceText) -> RankOwners:
    """Return the owners with the lines of operators that raise no call as far as the kept source tells them."""
    unsure = {i for i, f in enumerate(owners.frames) if f.is_user and 0 < f.line < f.line_to <= f.line + MAX_LINES}
    if not unsure:
        return owners
    symbols = _symbols_at(owners, unsure)
    frames = list(owners.frames)
    for i, wanted in symbols.items():
        lines = source.lines(frames[i].file)
        if lines is not None:
            frames[i] = _narrowed(frames[i], lines, wanted)
    return replace(owners, frames=tuple(frames))


def _symbols_at(owners: RankOwners, unsure: set[int]) -> dict[int, set[str]]:
    """Return the symbols of the operators that each of these frames executes itself."""
    innermost = [stack[-1] if stack else -1 for stack in owners.stacks]
    names: dict[int, set[str]] = defaultdict(set)
    for thread in owners.threads:
        around: list[int] = []  # the stacks of the operators that are open
        for name, depth, stack in zip(thread.name.tolist(), thread.depth.tolist(), thread.stack.tolist(), strict=True):
            is_part = depth > 0 and around[depth - 1 : depth] == [stack]  # of what the symbol stands for
            around[depth:] = [stack]
            if stack >= 0 and innermost[stack] in unsure and not is_part:
                bare = owners.names[name].removeprefix("aten::")
                names[innermost[stack]] |= {bare, bare.removesuffix("_")}
    by_frame = {frame: _symbols(asked, _SYMBOLS) or _symbols(asked, _VIEWS) for frame, asked in names.items()}
    return {frame: symbols for frame, symbols in by_frame.items() if symbols}


def _symbols(names: set[str], of_name: Mapping[str, str]) -> set[str]:
    return {of_name[name] for name in names if name in of_name}


def _narrowed(frame: Frame, lines: Sequence[str], wanted: set[str]) -> Frame:
    """Return the frame at the lines that may hold these symbols; as it is where none does."""
    numbers = range(frame.line, min(frame.line_to, len(lines)) + 1)
    holding = [n for n in numbers if wanted & set(operator_symbols(lines[n - 1]))]
    return replace(frame, line=holding[0], line_to=holding[-1]) if holding else frame


def operator_symbols(line: str) -> Iterator[str]:
    """Return the symbols in a line that may stand for an operator on tensors.

    >>> list(operator_symbols('x = f(*a, -1)[0] * scale  # times 2 + 3'))
    ['[', '*']
    """
    before = ""
    for token, after in pairwise([*_TOKEN.findall(code_of(line)), ""]):
        unary = iskeyword(before) or not _OPERAND_ENDS.search(before)
        wanted = not unary or (token in "~-" and not after[:1].isdigit())
        if token in _OPERATORS and wanted and '"' not in (before, after):
            yield token
        before = token
