"""Cached samples, report and lines of a run for comparisons. Numbers are read back to the bit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.compare.document import OwnedLine, lines_by_key
from stepscope.compare.samples import PerStepTimes, RunSamples, StepTimes
from stepscope.compare.sides import ComparedRun
from stepscope.document.cache import KeptPlace, kept_place
from stepscope.document.report import plain


def compared_place(given: Sequence[str], *, options: Mapping[str, Any], cache_folder: Path | None) -> KeptPlace | None:
    """Return the cache file of a compared run, None if there is no run."""
    return kept_place(given, ending="compared", options=options, cache_folder=cache_folder)


def keep_compared(place: KeptPlace | None, run: ComparedRun, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Cache what a comparison needs of a run."""
    if place is None:
        return
    lines = None if run.lines is None else list(run.lines.values())
    try:
        parts = vars(run) | {"samples": plain(run.samples), "lines": plain(lines)}
        place.keep(parts, key=key, raw_bytes=raw_bytes)
    except ValueError:  # a number of the report that JSON does not know
        return


def found_compared(place: KeptPlace | None) -> ComparedRun | None:
    """Return the cached run, None if there is none."""
    kept = place.found() if place else None
    if kept is None:
        return None
    del kept["key"]
    lines = None if kept["lines"] is None else lines_by_key(OwnedLine(**line) for line in kept["lines"])
    return ComparedRun(
        **kept | {"samples": _samples(kept["samples"]), "lines": lines, "not_read": tuple(kept["not_read"])}
    )


def _samples(kept: dict[str, Any]) -> RunSamples:
    for name in ("logged", "recorded", "periods"):
        times = kept[name]
        kept[name] = times and StepTimes(**times | {"dur_ns": np.array(times["dur_ns"], np.int64)})
    for name in ("part_ms", "profiled_part_ms"):
        kept[name] = None if kept[name] is None else np.array(kept[name], np.float64)
    for name in ("parts", "causes", "kernels", "operators"):
        names, ms, count = (kept[name][column] for column in ("names", "ms", "count"))
        shape = (len(ms), len(names))
        kept[name] = PerStepTimes(tuple(names), *(np.array(v, np.float64).reshape(shape) for v in (ms, count)))
    return RunSamples(**kept)
