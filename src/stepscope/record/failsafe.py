"""Training has priority: a failure in the recorder is one line on stderr, and the recorder turns off."""

import contextlib
import os
import sys
from pathlib import Path


def leave_out(error: BaseException) -> None:
    """Take the caller's frame, the newest entry, off the traceback of an error that it has just caught."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


SEEN_VARIABLE = "STEPSCOPE_SEEN"
# the settings of a helper process
HELPER_VARIABLE = "STEPSCOPE_HELPER"
FOLDERS = "folders."
SAID = "said."
HELPER = "helper."
CLOSED = "closed"
DONE = "done"
ERRNO = "errno"


def leave_word(name: str, text: str = "") -> None:
    """Leave a file for the launcher; where there is none, or not on this machine, nothing happens."""
    folder = os.environ.get(SEEN_VARIABLE)
    if folder:
        with contextlib.suppress(OSError), Path(folder, name).open("a", encoding="utf-8") as f:
            f.write(text)


def is_news(text: str) -> bool:
    """Return whether no process of this job on this machine has reported that yet, and mark it as reported.

    Ranks of one machine report the same; once is enough. An attempt after an elastic restart may report it again.
    """
    folder = os.environ.get(SEEN_VARIABLE)
    if not folder:
        return True
    import hashlib  # only where there is something to say

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    name = SAID + hashlib.sha256(f"{attempt} {text}".encode(errors="replace")).hexdigest()[:16]
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def say(text: str) -> None:
    """Write one line to stderr, once per machine and job; a closed stderr is no reason to fail."""
    if not is_news(text):
        return
    try:
        sys.stderr.write(f"stepscope: {text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass


def explain(error: BaseException) -> str:
    """Return `Kind: message (file:line)` for a warning line."""
    import traceback  # only on errors

    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}{where}"
