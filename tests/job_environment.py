"""PYTHONPATH of the jobs that tests start: torch starts fast in them, as `lazy_torch/sitecustomize.py` explains."""

import os
from pathlib import Path

LAZY_TORCH = Path(__file__).with_name("lazy_torch")


def python_path(*folders: Path | str) -> str:
    """Return a PYTHONPATH of these folders, behind them that of every job of the tests."""
    return os.pathsep.join(map(str, (*folders, LAZY_TORCH)))
