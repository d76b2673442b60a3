"""Which samplers a recording has, by its settings. Each is made on its own: one that cannot be is said and left out."""

from collections.abc import Callable
from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.window.schedule import close_look_at_memory


def standard_samplers(config: RecordConfig) -> list[Any]:
    """Return the samplers of this process, ready to be added to its recorder."""
    wanted: list[tuple[bool, str, Callable[[], Any]]] = [
        (True, "memory", _memory),
        (config.collectives, "live collectives", _collectives),
        (config.telemetry, "device telemetry", _telemetry),
        (config.memory, "memory through the step", lambda: _timeline(config)),
        (config.memory or config.memory_history, "memory history", _history),
        (config.nccl_log, "NCCL's log", _nccl_log),
    ]
    made = [_make_sampler(what, make) for is_wanted, what, make in wanted if is_wanted]
    return [sampler for sampler in made if sampler is not None]


def _make_sampler(what: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as e:  # noqa: BLE001 - training comes first
        say(f"{what} will not be recorded: {explain(e)}")
        return None


def _memory() -> Any:
    from stepscope.record.memory.snapshots import MemorySampler

    return MemorySampler()


def _collectives() -> Any:
    from stepscope.record.collectives.live import LiveCollectives

    return LiveCollectives()


def _telemetry() -> Any:
    from stepscope.record.samplers.telemetry import Telemetry

    return Telemetry()


def _timeline(config: RecordConfig) -> Any:
    from stepscope.record.memory.timeline import MemoryTimeline

    return MemoryTimeline(first_step=close_look_at_memory(config))


def _history() -> Any:
    from stepscope.record.memory.history import MemoryHistory

    return MemoryHistory()


def _nccl_log() -> Any:
    from stepscope.record.samplers.nccl_log import NcclLog

    return NcclLog()
