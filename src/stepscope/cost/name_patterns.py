r"""Does a name match one of many regular expressions, nearly all of which are of other names?

To look for a text in a name takes a tenth of a search with an expression and a thousandth of compiling it. So each is
compiled and asked only where the name holds its longest plain part, which is in all that it matches:

    (Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?     names with `V100-SXM` in them
    (?<!masked_)fill_                             names with `fill_`
    MI\x33|A.*                                    any name: there is no plain part where the rest is not understood
"""

import re
from functools import lru_cache

Fragments = tuple[tuple[str, str | None], ...]
"""pieces of lower-case names, of which any may be there: a plain part, and an expression where that is not all of it"""

_PLAIN = "[A-Za-z0-9 /_:<,-]"
_GROUP = r"\((?:\?<?[!=:])?(?!\?)[^()]*\)"
_OPEN = rf"(?:{_PLAIN}|[.$]|\\[bdw]|\[\^?[\w >-]+\]|{_GROUP})[?*+]?"
"""what may be missing, be repeated or differ: a character, a kind of character, a group without another in it"""
_PART = re.compile(rf"({_PLAIN}+(?![?*+{{]))|({_OPEN})")


def matches_whole(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in any letter case."""
    if name.isascii() and plain_part(pattern).lower() not in name.lower():
        return False
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None


def any_of(*fragments: str) -> Fragments:
    """Return fragments, regular expressions in any letter case, as they are looked for: the quickest first."""
    known = [(plain_part(fragment), fragment) for fragment in map(str.lower, fragments)]
    known.sort(key=lambda one: (one[0] != one[1], not one[0]))
    return tuple((part, None if part == fragment else fragment) for part, fragment in known)


def holds(text: str, fragments: Fragments) -> bool:
    """Return whether a name in lower case holds any of the fragments."""
    return any(part in text and (pattern is None or re.search(pattern, text)) for part, pattern in fragments)


@lru_cache(maxsize=1024)
def plain_part(pattern: str) -> str:
    """Return the longest text that is in all that a pattern matches; empty where none is sure to be."""
    parts: list[tuple[str, str]] = _PART.findall(pattern)
    if "".join(map("".join, parts)) != pattern:
        return ""
    return max((plain for plain, _ in parts), key=len, default="")
