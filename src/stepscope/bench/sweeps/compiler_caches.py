"""Where torch.compile finds what it compiled before: nothing, so that a first step takes as long as a job's first does.

Each variant that compiles gets a folder of its own. Kept in the usual place, the second sweep of a model would find
everything compiled, and so would the second variant.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CompilerCaches:
    """Folders by variant; further runs of a variant find what its first has compiled."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self._numbers: dict[str, int] = {}

    def use(self, variant: Mapping[str, Any]) -> None:
        """Let what comes now compile into the variant's folder, and forget what is loaded of others."""
        if not variant.get("step", {}).get("compile"):
            return
        if not self._numbers:
            self.close()  # a sweep that was killed could not
        number = self._numbers.setdefault(variant["name"], len(self._numbers))
        mine = self._folder / str(number)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(mine)
        os.environ["TRITON_CACHE_DIR"] = str(mine / "triton")
        _forget()

    def close(self) -> None:
        """Delete all folders."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _forget() -> None:
    if "torch._inductor" not in sys.modules:
        return
    from torch._inductor import utils

    clear = getattr(utils, "clear_caches", None) or getattr(utils, "clear_inductor_caches", None)
    if clear:
        clear()
