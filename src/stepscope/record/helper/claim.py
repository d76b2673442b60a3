"""Which folder belongs to this run: the requested one, or a sibling (`run-2`, `run-3`) where that holds a run.

Every run has a unique id, so an elastic restart and a second job with the same `--out` are other runs. The folder is
claimed by one file that holds the id and is created atomically; any process with the id finds it.
"""

import contextlib
import errno
import json
import os
import time
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_of
from stepscope.errors import UsageError
from stepscope.side_file import open_private, why_no_folder

# A small file that one of several processes creates atomically; the others get False.
#
# Standard library only: the helper process uses it.

# errors of full storage
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def create_whole(path: Path, text: str) -> bool:
    """Create the file with its content atomically; False where it exists."""
    temporary = path.with_name(f"{path.name}.{os.urandom(6).hex()}.tmp")
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
            path.unlink()  # an empty claim would block every process
        raise
    return True


CLAIM = ".recording"  # not `.json`, which trace viewers take for a trace
_MAX_SIBLINGS = 10_000


def claim_folder(
    out: str | os.PathLike[str], *, run_id: str, launch_id: str | None = None, attempt: str | None = None
) -> Path:
    """Return the folder of run `run_id`: the one that already has its claim, else a free one claimed now."""
    for number in range(1, _MAX_SIBLINGS):
        folder = _sibling(out, number)
        try:
            if why_not := why_no_folder(folder):
                raise UsageError(f"{folder}: not a safe place to write, since {why_not}; give another with --out")
            folder.mkdir(parents=True, exist_ok=True)
            if _claim(folder, run_id=run_id, launch_id=launch_id, attempt=attempt):
                return folder
        except OSError as e:
            raise UsageError(f"{folder}: cannot write there: {e.strerror}; give another with --out") from e
    raise UsageError(f"{out}: {_MAX_SIBLINGS} runs are there already; give another folder with --out")


def _sibling(out: str | os.PathLike[str], number: int) -> Path:
    first = Path(out).absolute()
    return first if number == 1 else first.with_name(f"{first.name}-{number}")


def folders_of_launch(out: str | os.PathLike[str], launch_id: str) -> list[Path]:
    """Return the folders of every run that one launch made under `out`, in order (restarts make several)."""
    found, number = [], 1
    while (folder := _sibling(out, number)).is_dir():
        if _read_claim(folder).get("launch_id") == launch_id:
            found.append(folder)
        number += 1
    return found


def folder_of_attempt(out: str, launch_id: str, attempt: str, *, since_ns: int) -> Path | None:
    """Return the newest folder that an attempt of a launch claimed since then, None without one."""
    folders = [(_read_claim(folder), folder) for folder in folders_of_launch(out, launch_id)]
    own = [folder for claim, folder in folders if claim.get("attempt") == attempt and claim["created_ns"] > since_ns]
    return own[-1] if own else None


def _claim(folder: Path, *, run_id: str, launch_id: str | None, attempt: str | None) -> bool:
    mine = _read_claim(folder).get("run_id")
    if mine is not None:
        return bool(mine == run_id)
    if any(p.name == RUN_JSON or rank_of(p.name) is not None for p in folder.iterdir()):
        return False
    text = json.dumps(
        {
            "run_id": run_id,
            "launch_id": launch_id,
            "attempt": attempt,
            "created_ns": time.time_ns(),
            "host": os.uname().nodename,
            "pid": os.getpid(),
        }
    )
    if create_whole(folder / CLAIM, text):
        return True
    return bool(_read_claim(folder).get("run_id") == run_id)


def _read_claim(folder: Path) -> dict[str, Any]:
    return json_object_in(folder / CLAIM)
