"""What rooms above the profiler add to it: commands, and results that `report`, `view` and `compare` open.

The profiler imports none of them: `stepscope/__init__.py` adds them by name.
"""

COMMANDS: dict[str, dict[str, tuple[str, ...]]] = {}
"""by room and command: its help, its module, and the module of its arguments where that is another"""
RESULTS: dict[str, str] = {}
"""by the kind in results.json: a module with `report`, `view` and `compare`"""
