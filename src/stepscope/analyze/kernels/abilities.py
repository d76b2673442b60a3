"""What can the run's chip do? Advice that it cannot follow is none: bfloat16 and TF32 begin with Ampere, fp8 with Ada.

The hardware table tells for chips in it; else the compute capability in the header, or the architecture that kernels
are named after. None: nothing tells.
"""

import re
from collections.abc import Sequence

from stepscope.analyze.kernels.chip import device_facts
from stepscope.cost.chips.table import Chip
from stepscope.dataclass import dataclass
from stepscope.run.rank import Rank

_NVIDIA_WARP = 32
_BF16_SINCE, _FP8_SINCE = (8, 0), (8, 9)
_AMD_TF32 = ("9.4",)
_NO_GRAPHS = re.compile(r"gaudi|^hl-|mtia|artemis|ascend|tpu|^cpu$", re.IGNORECASE)
_GENERATIONS = {"volta": "7.0", "turing": "7.5", "ampere": "8.0", "hopper": "9.0", "blackwell": "10.0"}


@dataclass(frozen=True)
class Abilities:
    """What a chip has units or a mode for; None where nothing tells."""

    bf16: bool | None = None
    tf32: bool | None = None
    fp8: bool | None = None
    graphs: bool | None = None
    """whether PyTorch captures CUDA or HIP graphs on it"""

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
        compute = device_facts(rank).compute or _by_kernels(name)
        if compute is not None:
            return _by_capability(compute, nvidia=_is_nvidia(rank, name), graphs=graphs)
    return Abilities(graphs=graphs)


def _is_nvidia(rank: Rank, name: str) -> bool:
    return rank.device.properties.get("warpSize", _NVIDIA_WARP) == _NVIDIA_WARP and not name.startswith("AMD")


def _by_kernels(name: str) -> str | None:
    """Return the compute capability in a name that was made from kernels' names."""
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
