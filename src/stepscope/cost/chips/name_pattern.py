"""Is a device's name one that a pattern of the hardware table stands for?

Nearly all patterns are of other chips, so nearly none is compiled.
"""

import re

from stepscope.cost.plain_part import plain_part


def matches_whole(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a whole name, in any letter case."""
    if name.isascii() and plain_part(pattern).lower() not in name.lower():
        return False
    return re.fullmatch(pattern, name, re.IGNORECASE) is not None
