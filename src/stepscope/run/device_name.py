"""Which device did a rank use, and how is that known?

The first that answers:

    properties   the header's entry of the device that ran the work; where none has its number (a job that sees only
                 some devices counts them anew), the name that all entries share
    kernels      the architecture that names of kernels carry (`sm90_...`, `ampere_...`, `gfx942`)
    metadata     a name elsewhere in the header, or the label of the device's process (`MTIA 17`)

Launches are the work of a device too: a trace that holds launches and no kernels is not one of a CPU.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.run.device_work import DeviceWork
from stepscope.trace.classify import labels
from stepscope.trace.table import Trace

CPU = "CPU"
# labels of processes that say nothing of the chip
_NO_NAME = re.compile(r"^(GPU|CPU|python|pt_)", re.IGNORECASE)

# First match wins.
_ARCHITECTURES = (
    (re.compile(r"(?<![a-z0-9])sm_?(\d{2,3})a?(?=[_.x]|$)", re.IGNORECASE), "NVIDIA GPU of compute capability {}"),
    (re.compile(r"(gfx\d+[a-z]?)"), "AMD GPU {}"),
    (re.compile(r"(?<![a-z])(volta|turing|ampere|hopper|blackwell)_"), "NVIDIA {} GPU"),
    (re.compile(r"(Cijk_)"), "AMD GPU"),
)


@dataclass(frozen=True)
class Device:
    """The device of a rank as its trace shows it."""

    #: as the driver gives it, `CPU` where nothing was launched; None where nothing names it
    name: str | None
    #: properties, kernels or metadata
    source: str | None
    #: the header's entry, empty where there is none
    properties: dict[str, Any]


def device_of(trace: Trace, work: DeviceWork, *, launches: int) -> Device:
    """Return the device of a rank that ran `work` and called `launches` launches whose work was not recorded."""
    listed = _listed(trace)
    if not len(work) and not launches and not (listed and trace.quality.truncated):
        return Device(CPU, None, {})
    properties = _entry(listed, _used(work))
    name = str(properties.get("name") or "").strip()
    if name:
        return Device(name, "properties", properties)
    for said, source in ((_by_kernels(trace, work), "kernels"), (_by_metadata(trace, work), "metadata")):
        if said:
            return Device(said, source, properties)
    return Device(None, None, properties)


def _listed(trace: Trace) -> list[dict[str, Any]]:
    listed = trace.header.get("deviceProperties")
    return [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []


def _used(work: DeviceWork) -> int:
    if not len(work):
        return 0
    devices, count = np.unique(work.device, return_counts=True)
    return int(devices[count.argmax()])


def _entry(listed: Sequence[dict[str, Any]], used: int) -> dict[str, Any]:
    own = next((entry for entry in listed if entry.get("id") == used), None)
    if own is not None:
        return own
    kinds = {(str(entry.get("name")), str(entry.get("totalGlobalMem")), str(entry.get("numSms"))) for entry in listed}
    names = {name for name, _, _ in kinds}
    if len(kinds) == 1:
        return listed[0]
    return {"name": listed[0].get("name")} if len(names) == 1 and listed else {}


def _by_kernels(trace: Trace, work: DeviceWork) -> str | None:
    ids, count = np.unique(work.name[work.name >= 0], return_counts=True)
    found: dict[str, int] = {}
    for i, n in list(zip(ids.tolist(), count.tolist(), strict=True))[:20_000]:
        said = _architecture(trace.strings[i])
        if said:
            found[said] = found.get(said, 0) + n
    return max(found, key=lambda said: found[said]) if found else None


def _architecture(kernel: str) -> str | None:
    for pattern, words in _ARCHITECTURES:
        match = pattern.search(kernel)
        if match:
            digits = match.group(1)
            spelt = f"{digits[:-1]}.{digits[-1]}" if digits.isdigit() else digits.capitalize()
            return words.format(digits if digits.startswith("gfx") else spelt)
    return None


def _by_metadata(trace: Trace, work: DeviceWork) -> str | None:
    for field in (("metadata", "system", "gpu"), ("metadata", "gpu"), ("gpu_name",), ("device_name",)):
        names = set(_texts(_inside(trace.header, field)))
        if len(names) == 1:
            return names.pop()
    pids, count = np.unique(trace["pid"][work.row], return_counts=True)
    named = {pid: text for (pid, _), text in labels(trace, "process_name").items()}
    said = named.get(int(pids[count.argmax()])) if len(pids) else None
    return said if said and not _NO_NAME.match(said) else None


def _inside(header: dict[str, Any], path: Iterable[str]) -> object:
    value: object = header
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _texts(value: object) -> list[str]:
    values = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return [v.strip() for v in values if isinstance(v, str) and v.strip()]
