"""Does a kernel's name hold one of many fragments?

A name is a few hundred characters long, and hundreds of fragments are looked for in it. Most are plain text; those that
are regular expressions are compiled and asked only where their plain part is there.
"""

import re

from stepscope.cost.plain_part import plain_part

Fragments = tuple[tuple[str, str | None], ...]
"""pieces of lower-case names, of which any may be there: a plain part, and an expression where that is not all of it"""


def any_of(*fragments: str) -> Fragments:
    """Return fragments, regular expressions in any letter case, as they are looked for."""
    known = [(plain_part(fragment), fragment) for fragment in map(str.lower, fragments)]
    quickest_first = sorted(known, key=lambda one: (one[0] != one[1], not one[0]))
    return tuple((part, None if part == fragment else fragment) for part, fragment in quickest_first)


def holds(text: str, fragments: Fragments) -> bool:
    """Return whether a name in lower case holds any of the fragments."""
    return any(part in text and (pattern is None or re.search(pattern, text)) for part, pattern in fragments)
