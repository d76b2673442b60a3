"""Where did the training step go, and how much time would each fix save?

Two sides, and only files between them. The *job side* (`record`, `bench`, `integrations`) runs inside training
and needs torch and the standard library. The *desk side* (everything else) reads what the job left behind and
never imports torch. This module imports neither side until a name is asked for, so `import stepscope` is cheap
in both places.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.version import __version__

if TYPE_CHECKING:
    from stepscope.analysis import Analysis as Analysis
    from stepscope.analysis import load as load
    from stepscope.bench.trainer import Trainer as Trainer
    from stepscope.cost.strategy_cost import CommunicationProfiler as CommunicationProfiler
    from stepscope.errors import InputError as InputError
    from stepscope.errors import InvalidValueError as InvalidValueError
    from stepscope.errors import MissingFileError as MissingFileError
    from stepscope.errors import StepscopeError as StepscopeError
    from stepscope.errors import TraceError as TraceError
    from stepscope.errors import UnknownNameError as UnknownNameError
    from stepscope.errors import UsageError as UsageError
    from stepscope.record.annotate import annotate_modules as annotate_modules
    from stepscope.record.memory import memory_snapshot as memory_snapshot
    from stepscope.record.profile import profile as profile
    from stepscope.record.profile import region as region
    from stepscope.record.quick_check import quick_check as quick_check
    from stepscope.record.straggler_detector import StragglerDetector as StragglerDetector
    from stepscope.record.tracker import PerformanceTracker as PerformanceTracker

_PUBLIC = {
    "Analysis": "stepscope.analysis",
    "CommunicationProfiler": "stepscope.cost.strategy_cost",
    "InputError": "stepscope.errors",
    "InvalidValueError": "stepscope.errors",
    "MissingFileError": "stepscope.errors",
    "PerformanceTracker": "stepscope.record.tracker",
    "StepscopeError": "stepscope.errors",
    "StragglerDetector": "stepscope.record.straggler_detector",
    "TraceError": "stepscope.errors",
    "Trainer": "stepscope.bench.trainer",
    "UnknownNameError": "stepscope.errors",
    "UsageError": "stepscope.errors",
    "annotate_modules": "stepscope.record.annotate",
    "load": "stepscope.analysis",
    "memory_snapshot": "stepscope.record.memory",
    "profile": "stepscope.record.profile",
    "quick_check": "stepscope.record.quick_check",
    "region": "stepscope.record.profile",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import the room that holds `name` on first use."""
    if name not in _PUBLIC:
        from stepscope.errors import did_you_mean

        raise AttributeError(f"module 'stepscope' has no attribute {name!r}; {did_you_mean(name, __all__)}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names, imported yet or not."""
    return sorted(__all__)
