"""A small file that one of several processes creates, whole or not at all: who comes second hears so.

Standard library only: the helper process uses it.
"""

import contextlib
import errno
import os
import secrets
from pathlib import Path

from stepscope.output_path import open_private

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""how storage says that it has no room"""


def create_whole(path: Path, text: str) -> bool:
    """Create the file with its content in one move; False where somebody was first."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with os.fdopen(open_private(temporary), "w", encoding="utf-8") as f:
            f.write(text)
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as e:
        if e.errno in FULL:
            raise
        return _create_exclusively(path, text)  # a file system without hard links
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return True


def _create_exclusively(path: Path, text: str) -> bool:
    try:
        f = os.fdopen(open_private(path, os.O_EXCL), "w", encoding="utf-8")
    except FileExistsError:
        return False
    try:
        with f:
            f.write(text)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()  # an empty claim would keep everybody out
        raise
    return True
