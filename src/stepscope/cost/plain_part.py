r"""Which text is in all that a regular expression matches?

To look for a text in a name takes a hundredth of a search with an expression and a thousandth of compiling it. So where
there are many expressions and few of them match, each is asked only where the name holds its longest plain part:

    (Tesla |NVIDIA )?V100-SXM[23]-16GB(-\w+)?     names with `V100-SXM` in them
    (?<!masked_)fill_                             names with `fill_`
    MI\x33|A.*                                    any name: there is no plain part where the rest is not understood
"""

import re
from functools import lru_cache

_PLAIN = "[A-Za-z0-9 /_:<,-]"
_GROUP = r"\((?:\?<?[!=:])?(?!\?)[^()]*\)"
_OPEN = rf"(?:{_PLAIN}|[.$]|\\[bdw]|\[\^?[\w >-]+\]|{_GROUP})[?*+]?"
"""what may be missing, be repeated or differ: a character, a kind of character, a group without another in it"""
_PART = re.compile(rf"({_PLAIN}+(?![?*+{{]))|({_OPEN})")


@lru_cache(maxsize=1024)
def plain_part(pattern: str) -> str:
    """Return the longest text that is in all that a pattern matches; empty where none is sure to be."""
    parts: list[tuple[str, str]] = _PART.findall(pattern)
    if "".join(map("".join, parts)) != pattern:
        return ""
    return max((plain for plain, _ in parts), key=len, default="")
