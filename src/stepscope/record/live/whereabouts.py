"""Where a training thread is right now, asked by a thread of ours: its Python stack and its newest collective.

It needs the interpreter's lock, which a thread that waits in a collective, a lock or a sleep has let go of. Where it is
not to be had the helper hears nothing, and says that.
"""

import sys
from typing import Any

_MAX_FRAMES = 40
_MAX_FILE = 200


def whereabouts(thread: int, *, region: str | None) -> dict[str, Any]:
    """Return `{"frames", "region", "collective", "sequence", "group"}`; frames are innermost first."""
    frame = sys._current_frames().get(thread)
    frames: list[list[Any]] = []
    while frame is not None and len(frames) < _MAX_FRAMES:
        code = frame.f_code
        frames.append([code.co_filename[-_MAX_FILE:], frame.f_lineno, code.co_name[:_MAX_FILE]])
        frame = frame.f_back
    return {"frames": frames, "region": region, **_newest_collective()}


def _newest_collective() -> dict[str, Any]:
    try:
        from stepscope.record.flight_recorder import newest_collectives

        entries = newest_collectives()
    except Exception:  # noqa: BLE001 - a private interface of torch
        return {}
    if not entries:
        return {}
    return _about_collective(entries[-1])


def _about_collective(entry: dict[str, Any]) -> dict[str, Any]:
    name = str(entry.get("profiling_name", "?")).partition(":")[2] or str(entry.get("profiling_name", "?"))
    numbers = (entry.get("p2p_seq_id") if entry.get("is_p2p") else entry.get("collective_seq_id")), entry.get("op_id")
    number = next((n for n in numbers if isinstance(n, int)), None)
    group = entry.get("process_group")
    known = str(group[0]) if isinstance(group, list | tuple) and group else None
    state = str(entry.get("state", "?"))
    return {"collective": f"{name} #{number} of group {known}, {state}", "sequence": number, "group": known}
