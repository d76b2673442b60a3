"""Where a function lies: torch shortens file names by the folders of `sys.path`; here they get their paths back.

    "train.py"                     /home/u/project/train.py              the user's
    "torch/nn/modules/linear.py"   .../site-packages/torch/nn/...        a library's
    "<ipython-input-3-a1b2>"       as it is                              the user's

A name that fits several files is that of the module that was imported; where several were, it is ambiguous, and said.
"""

import os
import site
import sys
import sysconfig
from pathlib import Path

import torch

USER, LIBRARY, OURS, PLUMBING = "user", "library", "ours", "plumbing"
_OWN_ROOMS = tuple(str(Path(__file__).parents[2] / room) + os.sep for room in ("record", "integrations"))
_TYPED_BY_HAND = ("<ipython-input", "<stdin>", "<cell")
# Between a line and what it calls: a frame of theirs says nothing of the work.
_PLUMBING = (
    "torch/nn/modules/module.py",
    "torch/_compile.py",
    "torch/_dynamo/eval_frame.py",
    "torch/utils/_contextlib.py",
    "torch/autograd/grad_mode.py",
    "torch/optim/optimizer.py",
    "torch/autograd/profiler.py",
    "torch/_tensor.py",
    "torch/_ops.py",
    "contextlib.py",
    "functools.py",
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Places:
    """Answers by file name, each worked out once."""

    def __init__(self) -> None:
        self.ambiguous: list[str] = []
        self._prefixes = shortened_by()
        self._imported: set[str] | None = None
        self._installed = _installed_folders()
        self._known: dict[str, tuple[str, str]] = {}

    def of(self, name: str) -> tuple[str, str]:
        """Return `(path, kind)` of a file name that torch gave."""
        found = self._known.get(name)
        if found is None:
            path = self._path_of(name)
            found = self._known[name] = (path, self._kind_of(path))
        return found

    def _path_of(self, name: str) -> str:
        if name.startswith("<") or Path(name).is_absolute():
            return name
        fitting = [path for prefix in self._prefixes if self._fits(path := prefix + name, name)]
        if len(fitting) > 1:
            fitting = [path for path in fitting if path in self._files_imported()] or fitting
        if len(fitting) > 1:
            self.ambiguous.append(name)
        return fitting[0] if fitting else str(Path(name).absolute()) if Path(name).exists() else name

    def _fits(self, path: str, name: str) -> bool:
        """Return whether torch would shorten this path to that name: by the first folder in its own order."""
        first = next(prefix for prefix in self._prefixes if path.startswith(prefix))
        return path == first + name and Path(path).is_file()

    def _files_imported(self) -> set[str]:
        if self._imported is None:
            named = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
            self._imported = {os.path.abspath(path) for path in named if isinstance(path, str)}  # noqa: PTH100 - links stay
        return self._imported

    def _kind_of(self, path: str) -> str:
        if path.startswith(_OWN_ROOMS):
            return OURS
        if not Path(path).is_absolute():
            return USER if path.startswith(_TYPED_BY_HAND) else LIBRARY
        if path.startswith(self._installed) or any(folder in path for folder in _INSTALLED):
            return PLUMBING if path.endswith(_PLUMBING) else LIBRARY
        return USER


def shortened_by() -> list[str]:
    """Return the folders by which torch's profiler shortens file names, in its order."""
    try:
        from torch.profiler.python_tracer import _prefix_regex

        return list(_prefix_regex())
    except (ImportError, AssertionError, AttributeError, TypeError):
        return sorted({os.path.abspath(folder) + os.sep for folder in sys.path}, reverse=True)  # noqa: PTH100


def _installed_folders() -> tuple[str, ...]:
    """Return the folders of the standard library, of installed packages and of torch, each with its separator."""
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {*site.getsitepackages(), site.getusersitepackages(), str(Path(torch.__file__).parent)}
    return tuple(folder.rstrip(os.sep) + os.sep for folder in folders if folder)
