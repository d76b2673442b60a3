r"""Is a device's name one that a pattern of the hardware table stands for?

A regular expression takes a hundred times longer to compile than to ask, and nearly all rows are of other chips. So one
is compiled only where the name holds its longest plain part:

    (Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?     names with `v100-sxm` in them
    (NVIDIA )?[A-Z]+\d+-\d+[CQ]                  names with `-`
    MI\x33|A.*                                    any name: a plain part is not taken out of what is not known
"""

import re
from functools import lru_cache

_PLAIN = "[A-Za-z0-9 /_-]"
_OPEN = rf"(?:{_PLAIN}|\.|\\[bdw]|\[[\w -]+\]|\((?!\?)[^()]*\))[?*+]?"
"""one character, kind of character or group that may be missing, be repeated or differ"""
_PART = re.compile(rf"({_PLAIN}+(?![?*+{{]))|({_OPEN})")


def matches_whole(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in any letter case."""
    if name.isascii() and plain_part(pattern) not in name.lower():
        return False
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None


@lru_cache(maxsize=1024)
def plain_part(pattern: str) -> str:
    """Return the longest text that is in all that a pattern matches, in lower case; empty where none is sure to be."""
    parts: list[tuple[str, str]] = _PART.findall(pattern)
    if sum(len(plain) + len(other) for plain, other in parts) < len(pattern):
        return ""
    return max((plain for plain, _ in parts), key=len, default="").lower()
