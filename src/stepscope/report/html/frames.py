"""A stack of the user's program as one place in words."""

from stepscope.analyze.owners.ownership import Ownership


def user_line(owned: Ownership, stack: int) -> str | None:
    """Return `train.py:42`, the innermost line of a stack that is the user's; None where it has none."""
    frames = (owned.frames[i] for i in reversed(owned.stacks[stack]))
    frame = next((f for f in frames if f.is_user), None)
    return None if frame is None else f"{frame.file}:{frame.line}"
