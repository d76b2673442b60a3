"""Step logs with given times, as the recorder writes them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def log_lines(
    steps: Iterable[float | Mapping[str, float]], *, window: range = range(0), at_ns: int = 10**9, **more: Any
) -> list[dict[str, Any]]:
    """Return the lines of steps in a row: each a length in ms, or its regions in ms with the time `outside` of them."""
    lines = []
    for step, given in enumerate(steps):
        ms = dict(given) if isinstance(given, Mapping) else {"outside": float(given)}
        end_ns = at_ns + round(1e6 * sum(ms.values()))
        phase = "window" if step in window else "before" if step < window.start else "after"
        lines.append(
            {
                "step": step, "start_ns": at_ns, "end_ns": end_ns, "dur_ns": end_ns - at_ns, "device_ns": None,
                "profiled": step in window, "phase": phase,
                "regions": {name: {"ns": round(1e6 * own), "n": 1} for name, own in ms.items() if name != "outside"},
                **more,
            }
        )  # fmt: skip
        at_ns = end_ns
    return lines


def write_log(
    folder: Path, rank: int, lines: Iterable[dict[str, Any]], *, ranks: int | None = None, **header: Any
) -> Path:
    """Write a rank's step log."""
    folder.mkdir(parents=True, exist_ok=True)
    header = {"schema": 1, "rank": rank, **({} if ranks is None else {"world_size": ranks}), **header}
    path = folder / f"rank{rank:05}.steps.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in (header, *lines)))
    return path
