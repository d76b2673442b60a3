"""Word that the processes of a job leave for its launcher, in a local folder: how far recording got.

python         a Python process found our `sitecustomize`        (written there, in its own words)
torch          a process imported torch
folders.PID    the run folder that a process wrote to
"""

import contextlib
import os
from pathlib import Path

SEEN_VARIABLE = "STEPSCOPE_SEEN"
FOLDERS = "folders."


def leave_word(name: str, text: str = "") -> None:
    """Leave a file for the launcher; where there is none, or not on this machine, nothing happens."""
    folder = os.environ.get(SEEN_VARIABLE)
    if folder:
        with contextlib.suppress(OSError), Path(folder, name).open("a", encoding="utf-8") as f:
            f.write(text)
