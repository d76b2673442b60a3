"""Word that the processes of a job leave for its launcher, in a local folder: how far recording got.

python         a Python process found our `sitecustomize`        (written there, in its own words)
torch          a process imported torch
folders.PID    the run folder that a process writes to
said.HASH      a line of ours that a process wrote to stderr
helper.PID     a helper process was started
    .closed    its training process waits for it no longer
    .errnoN    a write of it failed, for this reason
    .done      it has ended by itself

Names hold all of a helper's word: on a full disk there is often room for a name where there is none for text.
"""

import contextlib
import hashlib
import os
from pathlib import Path

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
    """Return whether no process of this job on this machine has said that yet; from now on one has.

    Ranks of one machine have the same to say; once is enough. An attempt after an elastic restart may say it again.
    """
    folder = os.environ.get(SEEN_VARIABLE)
    if not folder:
        return True
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
    name = SAID + hashlib.sha256(f"{attempt} {text}".encode(errors="replace")).hexdigest()[:16]
    try:
        Path(folder, name).touch(exist_ok=False)
    except FileExistsError:
        return False
    except OSError:
        return True
    return True
