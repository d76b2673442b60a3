"""Cached samples, report and lines of a run for comparisons. Numbers are read back to the bit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.compare.findings import Cause, OwnedLine, Side, lines_by_key
from stepscope.compare.samples import PerStepTimes, RunSamples, StepTimes
from stepscope.compare.sides import ComparedRun
from stepscope.document.cache import KeptPlace, kept_place
from stepscope.document.rows import plain


def compared_place(given: Sequence[str], *, options: Mapping[str, Any], cache_folder: Path | None) -> KeptPlace | None:
    """Return the cache file of a compared run, None if there is no run."""
    return kept_place(given, ending="compared", options=options, cache_folder=cache_folder)


def keep_compared(place: KeptPlace | None, run: ComparedRun, *, key: dict[str, Any] | None, raw_bytes: int) -> None:
    """Cache what a comparison needs of a run."""
    if place is None:
        return
    lines = None if run.source.lines is None else list(run.source.lines.values())
    try:
        parts = vars(run) | {
            "samples": plain(run.samples),
            "source": plain([lines, run.source.causes, run.source.lost]),
        }
        place.keep(parts, key=key, raw_bytes=raw_bytes)
    except ValueError:  # a number of the report that JSON does not know
        return


def found_compared(place: KeptPlace | None) -> ComparedRun | None:
    """Return the cached run, None if there is none."""
    kept = place.found() if place else None
    if kept is None:
        return None
    del kept["key"]
    lines, causes, lost = kept["source"]
    by_key = None if lines is None else lines_by_key(OwnedLine(**line) for line in lines)
    source = Side(by_key, tuple(_cause(one) for one in causes), lost)
    return ComparedRun(
        **kept | {"samples": _samples(kept["samples"]), "source": source, "not_read": tuple(kept["not_read"])}
    )


def _cause(kept: dict[str, Any]) -> Cause:
    line = kept["line"]
    return Cause(**kept | {"ranks": tuple(kept["ranks"]), "line": line and tuple(line)})


def _samples(kept: dict[str, Any]) -> RunSamples:
    for name in ("logged", "recorded", "periods"):
        times = kept[name]
        kept[name] = times and StepTimes(
            **times
            | {"dur_ns": np.array(times["dur_ns"], np.int64)}
            | {one: times[one] and np.array(times[one], np.float64) for one in ("wait_ns", "lost_ns", "cpu_ns")}
        )
    for name in ("part_ms", "profiled_part_ms"):
        kept[name] = None if kept[name] is None else np.array(kept[name], np.float64)
    for name in ("parts", "causes", "kernels", "operators"):
        names, ms, count = (kept[name][column] for column in ("names", "ms", "count"))
        shape = (len(ms), len(names))
        kept[name] = PerStepTimes(tuple(names), *(np.array(v, np.float64).reshape(shape) for v in (ms, count)))
    return RunSamples(**kept)
