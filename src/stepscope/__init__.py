"""Where did the training step go, and how much time would each fix save?

Two sides, and only files between them. The *job side* (`record`, `integrations`, `lab.bench`) runs inside training
and needs torch and the standard library. The *desk side* (everything else) reads what the job left behind and
never imports torch. This module imports neither side until a name is used, so `import stepscope` is cheap
in both places.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepscope.additions import COMMANDS, RESULTS
from stepscope.version import __version__

if TYPE_CHECKING:
    from stepscope.analysis import Analysis as Analysis, load as load
    from stepscope.errors import (
        InputError as InputError,
        InvalidValueError as InvalidValueError,
        MissingFileError as MissingFileError,
        StepscopeError as StepscopeError,
        TraceError as TraceError,
        UnknownNameError as UnknownNameError,
        UsageError as UsageError,
    )
    from stepscope.lab.bench.trainer import Trainer as Trainer
    from stepscope.lab.exercises import (
        NVTXAnnotatedModule as NVTXAnnotatedModule,
        OverlapProfiler as OverlapProfiler,
        count_flops_per_token as count_flops_per_token,
        measure_mfu as measure_mfu,
        plot_calibration as plot_calibration,
        profile_training_step as profile_training_step,
    )
    from stepscope.lab.predict.strategy_cost import CommunicationProfiler as CommunicationProfiler
    from stepscope.lab.toolkit import (
        ABProfiler as ABProfiler,
        BottleneckAnalyzer as BottleneckAnalyzer,
        CollectiveTimePredictor as CollectiveTimePredictor,
        DDPProfiler as DDPProfiler,
        DistributedProfiler as DistributedProfiler,
        MemoryProfiler as MemoryProfiler,
        OverlapEfficiencyTracker as OverlapEfficiencyTracker,
        PPProfiler as PPProfiler,
        ProfiledAllReduce as ProfiledAllReduce,
        TPProfiler as TPProfiler,
        ZeROProfiler as ZeROProfiler,
        align_timelines as align_timelines,
        annotate_model as annotate_model,
        calculate_comm_efficiency as calculate_comm_efficiency,
        calculate_hfu as calculate_hfu,
        calculate_mfu as calculate_mfu,
        calibrate_alpha_beta as calibrate_alpha_beta,
        detect_stragglers as detect_stragglers,
        diagnose_low_mfu as diagnose_low_mfu,
        diagnose_memory_pressure as diagnose_memory_pressure,
        diagnose_slow_communication as diagnose_slow_communication,
        measure_alpha_beta as measure_alpha_beta,
        memory_breakdown as memory_breakdown,
        profile_distributed_training as profile_distributed_training,
        quick_health_check as quick_health_check,
    )
    from stepscope.lab.tracker import PerformanceTracker as PerformanceTracker
    from stepscope.record.annotate import annotate_modules as annotate_modules
    from stepscope.record.memory import memory_snapshot as memory_snapshot
    from stepscope.record.profile import profile as profile, region as region
    from stepscope.record.quick_check import quick_check as quick_check
    from stepscope.record.straggler_detector import StragglerDetector as StragglerDetector

COMMANDS["lab"] = {
    "bench": (
        "benchmark data-parallel implementations and settings",
        "stepscope.lab.cli.bench",
        "stepscope.lab.cli.bench_arguments",
    ),
    "gate": (
        "test a change against its base in interleaved runs",
        "stepscope.lab.cli.gate",
        "stepscope.lab.cli.gate_arguments",
    ),
    "tune": (
        "try settings in interleaved A/B runs, keep what helps",
        "stepscope.lab.cli.tune",
        "stepscope.lab.cli.tune_arguments",
    ),
    "calibrate": ("measure collective bandwidth on this machine", "stepscope.lab.cli.calibrate"),
    "predict": ("estimate step time, memory and FLOPs of other setups", "stepscope.lab.cli.predict"),
}
RESULTS["bench"] = "stepscope.lab.cli.results"

_TOOLKIT = (
    "ABProfiler",
    "BottleneckAnalyzer",
    "CollectiveTimePredictor",
    "DDPProfiler",
    "DistributedProfiler",
    "MemoryProfiler",
    "OverlapEfficiencyTracker",
    "PPProfiler",
    "ProfiledAllReduce",
    "TPProfiler",
    "ZeROProfiler",
    "align_timelines",
    "annotate_model",
    "calculate_comm_efficiency",
    "calculate_hfu",
    "calculate_mfu",
    "calibrate_alpha_beta",
    "detect_stragglers",
    "diagnose_low_mfu",
    "diagnose_memory_pressure",
    "diagnose_slow_communication",
    "measure_alpha_beta",
    "memory_breakdown",
    "profile_distributed_training",
    "quick_health_check",
)
_EXERCISES = (
    "NVTXAnnotatedModule",
    "OverlapProfiler",
    "count_flops_per_token",
    "measure_mfu",
    "plot_calibration",
    "profile_training_step",
)
_PUBLIC = {
    "Analysis": "stepscope.analysis",
    "CommunicationProfiler": "stepscope.lab.predict.strategy_cost",
    "InputError": "stepscope.errors",
    "InvalidValueError": "stepscope.errors",
    "MissingFileError": "stepscope.errors",
    "PerformanceTracker": "stepscope.lab.tracker",
    "StepscopeError": "stepscope.errors",
    "StragglerDetector": "stepscope.record.straggler_detector",
    "TraceError": "stepscope.errors",
    "Trainer": "stepscope.lab.bench.trainer",
    "UnknownNameError": "stepscope.errors",
    "UsageError": "stepscope.errors",
    "annotate_modules": "stepscope.record.annotate",
    "load": "stepscope.analysis",
    "memory_snapshot": "stepscope.record.memory",
    "profile": "stepscope.record.profile",
    "quick_check": "stepscope.record.quick_check",
    "region": "stepscope.record.profile",
    **dict.fromkeys(_TOOLKIT, "stepscope.lab.toolkit"),
    **dict.fromkeys(_EXERCISES, "stepscope.lab.exercises"),
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Import the room that holds `name` on first use."""
    if name not in _PUBLIC:
        from stepscope.errors import did_you_mean
        from stepscope.lab.guides import INSTEAD

        instead = f"see {INSTEAD[name]}" if name in INSTEAD else did_you_mean(name, __all__)
        raise AttributeError(f"module 'stepscope' has no attribute {name!r}; {instead}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """Return the public names, imported yet or not."""
    return sorted(__all__)
