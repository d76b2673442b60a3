"""Writing a result where the user asked for it: whole or not at all, never over what exists, never through a link."""

import sys
from pathlib import Path

from stepscope.errors import UsageError
from stepscope.run_folder import written_whole


def write_output(path: str, text: str, *, force: bool) -> None:
    """Write `text` to `path`, or to standard output for `-`."""
    if path == "-":
        sys.stdout.write(text)
        return
    target = Path(path)
    if target.is_dir():
        raise UsageError(f"expected a file to write, found a folder at {path}; give a file name in it")
    if (target.exists() or target.is_symlink()) and not force:
        raise UsageError(f"expected to create {path}, found it exists; use --force to overwrite, or another name")
    try:
        with written_whole(target) as f:
            f.write(text.encode(errors="replace"))
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; choose a place that can be written") from error
