"""Stacks of source lines with their time on the critical path, on the device and on the host, for other viewers.

    pprof       profile.proto of the pprof project, gzipped; one sample per stack and module, the module as a label
    speedscope  the JSON of speedscope.app; lines and modules, each by critical path, device and host

All times are nanoseconds per step.
"""

import json
import zlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.report.perfetto import message, number
from stepscope.version import __version__

# stack of (`file:line`, function) with the outermost first, and module; then host, device and critical path
Stacks = Mapping[tuple[tuple[tuple[str, str], ...], str], npt.NDArray[np.float64]]

_KINDS = {"critical_path": 2, "device": 1, "host": 0}
_UNOWNED = "(no owner)"


def pprof_profile(stacks: Stacks, *, name: str, step_ns: float | None) -> bytes:
    """Return the stacks as a gzipped profile for `pprof`; the first sample type is the critical path."""
    texts: dict[str, int] = {"": 0}
    functions: dict[tuple[str, str], int] = {}
    locations: dict[tuple[str, str], int] = {}
    text = partial(_id, texts, 0)
    body = [message(1, number(1, text(kind)), number(2, text("nanoseconds"))) for kind in _KINDS]
    for (stack, module), times in stacks.items():
        frames = [number(1, _id(locations, 1, frame)) for frame in reversed(stack or ((_UNOWNED, _UNOWNED),))]
        values = [number(2, round(float(times[at]))) for at in _KINDS.values()]
        labels = [message(3, number(1, text("module")), number(2, text(module)))] if module else []
        body.append(message(2, *frames, *values, *labels))
    for (place, function), location in locations.items():
        file, line = _place(place)
        row = number(1, _id(functions, 1, (file, function))), number(2, line)
        body.append(message(4, number(1, location), message(4, *row)))
    for (file, function), at in functions.items():
        body.append(
            message(5, number(1, at), number(2, text(function)), number(3, text(function)), number(4, text(file)))
        )
    body.append(number(10, round(step_ns or 0)))
    body.append(message(11, number(1, text("step")), number(2, text("count"))) + number(12, 1))
    body.append(number(13, text(f"stepscope {__version__}: {name}, times per step")))
    body.append(number(14, text("critical_path")))
    body += [message(6, one.encode("utf-8", "replace")) for one in texts]
    packer = zlib.compressobj(wbits=31)
    return packer.compress(b"".join(body)) + packer.flush()


def speedscope_profile(stacks: Stacks, *, name: str) -> bytes:
    """Return the stacks as the JSON of speedscope: lines and modules by each kind of time that there is any of."""
    frames: dict[tuple[str, str], int] = {}
    profiles = []
    for what in ("lines", "modules"):
        for kind, at in _KINDS.items():
            times: dict[tuple[int, ...], int] = {}
            for (stack, module), values in stacks.items():
                path = stack if what == "lines" else tuple(("", part) for part in _modules(module))
                key = tuple(_id(frames, 0, frame) for frame in path or (("", _UNOWNED),))
                times[key] = times.get(key, 0) + round(float(values[at]))
            if any(times.values()):
                profiles.append(_sampled(f"{what}, {kind.replace('_', ' ')}", times))
    shown = [_frame(place, label) for place, label in frames]
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": f"{name}, time per step",
        "exporter": f"stepscope@{__version__}",
        "activeProfileIndex": 0,
        "shared": {"frames": shown},
        "profiles": profiles,
    }
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def _id(known: dict[Any, int], first: int, key: Any) -> int:
    return known.setdefault(key, len(known) + first)


def _place(name: str) -> tuple[str, int]:
    file, _, line = name.rpartition(":")
    return (file, int(line)) if line.isdigit() else ("", 0)


def _modules(path: str) -> Collection[str]:
    parts = path.split(".") if path else []
    return [".".join(parts[: i + 1]) for i in range(len(parts))]


def _frame(place: str, label: str) -> dict[str, Any]:
    file, line = _place(place)
    return {"name": f"{label} ({place})", "file": file, "line": line} if file else {"name": label}


def _sampled(name: str, times: Mapping[tuple[int, ...], int]) -> dict[str, Any]:
    largest = sorted(((stack, ns) for stack, ns in times.items() if ns > 0), key=lambda one: one[0])
    return {
        "type": "sampled",
        "name": name,
        "unit": "nanoseconds",
        "startValue": 0,
        "endValue": sum(ns for _, ns in largest),
        "samples": [list(stack) for stack, _ in largest],
        "weights": [ns for _, ns in largest],
    }
