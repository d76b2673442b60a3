"""What a helper process has to know to answer while the job runs, as plain values."""

from collections.abc import Mapping
from typing import Any

from stepscope.record.config import RecordConfig
from stepscope.record.rank import Place
from stepscope.record.window.schedule import free_step

_OTLP_HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"


def live_settings(config: RecordConfig, place: Place, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of `Live`."""
    return {
        "free_step": free_step(config),
        "first_number": 0 if config.light else config.repeat,
        "why_no_window": _why_no_window(config),
        "profiled_ranks": None if config.ranks is None else list(config.ranks),
        "pause_s": config.asked_pause_s,
        "on_alarm": config.on_alarm,
        "alarm_pause_s": config.alarm_pause_s,
        "max_alarm_windows": config.max_alarm_windows,
        "watch_stalls": config.watch_stalls,
        "metrics": config.metrics,
        "local_rank": place.local_rank or 0,
        "otlp": config.otlp,
        "otlp_period_s": config.otlp_period_s,
        "attempt": environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    }


def _why_no_window(config: RecordConfig) -> str | None:
    if config.tool == "torch":
        return None
    return f"the job runs under {config.outside_tool or 'another tool'}, which records the window; record without it"
