# ruff: noqa: PTH100, PTH118, PTH120, BLE001 - every Python process of a job starts here: os and sys only, no failure
"""Starts the recorder in every Python process of a job: Python imports a `sitecustomize` at its start.

`stepscope record` puts this folder, and nothing else, first on PYTHONPATH, so the job's own packages are untouched.
Without `STEPSCOPE_RECORD`, or without `import torch`, nothing happens. Another `sitecustomize` further down the path
runs as if this one were not there. Plain enough for any Python 3, because any may start here.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))
_MIN_PYTHON = (3, 11)


def _record() -> None:
    if _is_part_of_a_program():
        return
    if sys.version_info < _MIN_PYTHON:
        needed, found = (".".join(map(str, version[:2])) for version in (_MIN_PYTHON, sys.version_info))
        _say(f"recording needs Python {needed} or newer, found {found}; this process runs unrecorded")
        return
    _make_importable()
    from stepscope.record.failsafe import leave_word

    leave_word("python")
    from stepscope.record.config import RecordConfig
    from stepscope.record.launch.outside_tool import start_under_tool

    start_under_tool(RecordConfig.from_env(), os.environ)
    from stepscope.record.hooks.patches import after_import

    after_import("torch", _torch_is_there)


def _is_part_of_a_program() -> bool:
    """Return whether this Python is built into a program that cannot start others (Nsight Compute has one): no job."""
    import importlib.util

    return os.name == "posix" and importlib.util.find_spec("_posixsubprocess") is None


def _torch_is_there() -> None:
    try:
        from stepscope.record.launch.inject_point import begin

        begin()
    except Exception as e:
        _say(f"this process runs unrecorded: {type(e).__name__}: {e}")


def _make_importable() -> None:
    """Let `import stepscope` find the copy next to this file, without putting its neighbours on the path."""
    import importlib.util

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            if name != "stepscope":
                return None
            init = os.path.join(_PACKAGE, "__init__.py")
            return importlib.util.spec_from_file_location(name, init, submodule_search_locations=[_PACKAGE])

    sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


def _run_the_next_one() -> None:
    """Run the `sitecustomize` that would have been found without us."""
    import importlib.machinery
    import importlib.util

    rest = [folder for folder in sys.path if os.path.abspath(folder or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _say(text: str) -> None:
    sys.stderr.write(f"stepscope: {text}\n")


if os.environ.get("STEPSCOPE_RECORD"):
    try:
        _record()
    except Exception as e:
        _say(f"this process runs unrecorded: {type(e).__name__}: {e}")
_run_the_next_one()
