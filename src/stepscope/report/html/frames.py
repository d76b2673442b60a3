"""A stack of the user's program as one place in words."""

from stepscope.analyze.owners.ownership import Ownership


def user_line(owned: Ownership, stack: int) -> str | None:
    """Return `train.py:42`, the innermost line of a stack that is the user's; None where it has none."""
    line = owned.stacks.user_line(stack)
    return None if line is None else f"{line[0]}:{line[1]}"
