"""The environment in which other tools run: a virtual environment of their own, made on first use."""

import subprocess
import venv
from collections.abc import Sequence
from pathlib import Path


def peer_python(home: Path, packages: Sequence[str]) -> Path:
    """Return the interpreter of an environment with these packages."""
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        (home / "ready").touch()
    return python
