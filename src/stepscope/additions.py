"""What rooms above the profiler add to it: commands, and results that `report`, `view` and `compare` open.

The profiler imports none of them: `stepscope/__init__.py` registers them by name. Such a room has two tables of names.

    COMMANDS   {command: (help, module, module of its arguments where that is another)}
    RESULTS    {kind in results.json: module with `report`, `view` and `compare`}
"""

from importlib import import_module
from types import ModuleType

_rooms: list[str] = []


def register(room: str) -> None:
    """Add a room by name; it is imported when a command needs to know what there is."""
    _rooms.append(room)


def rooms() -> list[ModuleType]:
    """Return the rooms that were added."""
    return [import_module(name) for name in _rooms]
