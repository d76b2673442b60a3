"""Which chip did the run compute on, what can it do, and how much of it does a launch use?"""

import math
import re
from collections.abc import Sequence

import numpy as np

from stepscope.analyze.host_time import Floats
from stepscope.cost.chips import Chip, DeviceFacts, Lookup, look_up, nameless
from stepscope.records import dataclass, once_per_record
from stepscope.run.rank import CPU, Rank
from stepscope.stats.robust import distinct
from stepscope.trace.table import NO_STRING, Int64s, Trace


def run_chip(ranks: Sequence[Rank], *, extra: Sequence[Chip] = ()) -> Lookup:
    """Return the chip that all ranks have, or why it is unknown. Rows in `extra` (a user's own) go first."""
    found = [_rank_chip(rank, extra) for rank in ranks]
    names = {one.chip.name for one in found if one.chip}
    if len(names) > 1:
        return Lookup(None, f"ranks have different chips ({', '.join(sorted(names))}): no single peak holds for all")
    unknown = next((one for one in found if one.chip is None), None)
    return unknown or (found[0] if found else Lookup(None, "no rank was read"))


def device_in_words(rank: Rank, found: Lookup) -> str | None:
    """Return a device's name as the driver gave it; where it gave none, the chip it was taken for, else what kernels
    or metadata say of it.
    """
    if rank.device.source != "properties" and found.chip is not None and rank.device.name != CPU:
        return found.chip.name
    return rank.device.name


def _rank_chip(rank: Rank, extra: Sequence[Chip]) -> Lookup:
    device, facts = rank.device, _device_facts(rank)
    if device.name is not None:
        found = look_up(device.name, memory_bytes=facts.memory_bytes, extra=extra)
        if found.chip is not None or device.source == "properties" or device.name == CPU:
            return found
    if device.properties:
        return nameless(facts)
    if device.name is not None:
        return Lookup(None, f"the trace of rank {rank.rank} only names its device as {device.name}; give its peak")
    return Lookup(None, f"the trace of rank {rank.rank} does not name its device; give its peak")


def _device_facts(rank: Rank) -> DeviceFacts:
    of = rank.device.properties
    major, minor = of.get("computeMajor"), of.get("computeMinor")
    known = isinstance(major, int) and isinstance(minor, int)
    return DeviceFacts(
        memory_bytes=_whole(of.get("totalGlobalMem")),
        compute=f"{major}.{minor}" if known else None,
        multiprocessors=_whole(of.get("numSms")),
    )


_WARP, _SCHEDULERS = 32, 4
#: of a device's lanes: launches that can use less leave most of it without work, whatever they compute
FILLS_LITTLE = 0.25


@once_per_record
def launch_sizes(rank: Rank) -> tuple[Floats, Floats]:
    """Return by row of work how many blocks a kernel was launched with and how many threads each has, 0 if unknown."""
    trace, row = rank.trace, rank.work.row
    grid, block = (_sizes_of(trace, trace.arg(name).at(row, missing=NO_STRING)) for name in ("grid", "block"))
    return grid, block


def filled_share(rank: Rank) -> Floats:
    """Return by row of work which share of the device's lanes a launch can use, 1 where that is unknown.

    A multiprocessor of NVIDIA's has four schedulers, each runs a warp of 32 lanes, and a block stays on its
    multiprocessor.
    """
    facts, (grid, block) = _device_facts(rank), launch_sizes(rank)
    if facts.compute is None or not facts.multiprocessors:
        return np.ones(len(grid))
    warps = np.ceil(block / _WARP)
    spread = np.minimum(grid, grid * warps / _SCHEDULERS) / facts.multiprocessors
    return np.where((grid > 0) & (block > 0), np.minimum(spread, 1.0) * block / np.maximum(warps * _WARP, 1), 1.0)


def _sizes_of(trace: Trace, text: Int64s) -> Floats:
    known = distinct(text)
    sizes = [trace.strings[one] if one != NO_STRING else "" for one in known.tolist()]
    return np.array(list(map(_size_of, sizes)), float)[np.searchsorted(known, text)]


def _size_of(text: str) -> int:
    sides = re.findall(r"\d+", text)
    return math.prod(map(int, sides)) if 1 <= len(sides) <= 3 and max(map(len, sides)) <= 10 else 0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# What does the run's chip support? bfloat16 and TF32 begin with Ampere, fp8 with Ada.
#
# From the hardware table; for other chips from the compute capability in the header, or the architecture in kernel
# names.

_NVIDIA_WARP = 32
_BF16_SINCE, _FP8_SINCE = (8, 0), (8, 9)
_AMD_TF32 = ("9.4",)
_NO_GRAPHS = re.compile(r"gaudi|^hl-|mtia|artemis|ascend|tpu|^cpu$", re.IGNORECASE)
_GENERATIONS = {"volta": "7.0", "turing": "7.5", "ampere": "8.0", "hopper": "9.0", "blackwell": "10.0"}


@dataclass(frozen=True)
class Abilities:
    """What a chip has units or a mode for; None where unknown."""

    bf16: bool | None = None
    tf32: bool | None = None
    fp8: bool | None = None
    #: whether PyTorch captures CUDA or HIP graphs on it
    graphs: bool | None = None

    @property
    def narrow(self) -> str:
        """Return the 16-bit type to advise: bfloat16 unless the chip has none."""
        return "float16" if self.bf16 is False else "bfloat16"


def abilities(ranks: Sequence[Rank], chip: Chip | None) -> Abilities:
    """Return what the device of a run can do."""
    name = next((rank.device_name for rank in ranks if rank.device_name), "") or ""
    graphs = not _NO_GRAPHS.search(name) if name else None
    if chip is not None:
        has = chip.tflops
        return Abilities("bf16" in has, "tf32" in has, "fp8" in has, graphs)
    for rank in ranks:
        compute = _device_facts(rank).compute or _by_kernels(name)
        if compute is not None:
            return _by_capability(
                compute,
                nvidia=rank.device.properties.get("warpSize", _NVIDIA_WARP) == _NVIDIA_WARP
                and not name.startswith("AMD"),
                graphs=graphs,
            )
    return Abilities(graphs=graphs)


def _by_kernels(name: str) -> str | None:
    number = re.search(r"compute capability (\d+\.\d)", name)
    if number:
        return number.group(1)
    return next((c for word, c in _GENERATIONS.items() if word in name.lower()), None)


def _by_capability(compute: str, *, nvidia: bool, graphs: bool | None) -> Abilities:
    if not nvidia:  # AMD's 9.0 is MI100 and MI200, all with bf16 units
        return Abilities(bf16=compute.startswith("9.") or None, tf32=compute in _AMD_TF32, fp8=None, graphs=graphs)
    major, minor = (int(part) for part in compute.split("."))
    ampere = (major, minor) >= _BF16_SINCE
    return Abilities(bf16=ampere, tf32=ampere, fp8=(major, minor) >= _FP8_SINCE, graphs=graphs)
