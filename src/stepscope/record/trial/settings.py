"""Every setting that a trial can put into a job from inside its process, by name, and which of them took hold.

    loader.num_workers, .pin_memory, .prefetch_factor, .persistent_workers     arguments of every DataLoader
    ddp.bucket_cap_mb, .gradient_as_bucket_view                                arguments of DDP
    optimizer.fused                                                            of torch's own optimizers
    precision.tf32, cudnn.benchmark                                            switches of torch
    compile.model                                                              the largest module that the loop calls

Switches are set at the start and once more after the first step, because scripts set them too. What is chosen by the
environment (allocator, NCCL, threads) is set where the job is started and is not here.
"""

from collections.abc import Mapping
from typing import Any

import torch

from stepscope.contract.tuning import BENCHMARK, COMPILE, FUSED, FUSED_OPTIMIZERS, TF32
from stepscope.record.failsafe import explain, say
from stepscope.record.hooks.patches import Patches
from stepscope.record.trial.constructors import Loaders, change_arguments, change_ddp, change_optimizer


class Settings:
    """What is set in this process; `took` holds the names of those that changed anything."""

    def __init__(self, wanted: Mapping[str, Any]) -> None:
        self.took: list[str] = []
        self.wanted = dict(wanted)
        self.loaders = Loaders(self._of("loader"), self._take)

    def apply(self, patches: Patches) -> None:
        """Set all of it; what this torch does not know is said, and is then missing in `took`."""
        self.loaders.install(patches)
        if self._of("ddp"):
            ddp = torch.nn.parallel.DistributedDataParallel
            change_arguments(patches, ddp, change_ddp(self._of("ddp"), self._take))
        if self.wanted.get(FUSED):
            for name in FUSED_OPTIMIZERS:
                change_arguments(patches, getattr(torch.optim, name), change_optimizer(self._take))
        self.set_switches()

    def set_switches(self) -> None:
        """Set the switches of torch, over what the script set in the meantime."""
        for name, act in ((TF32, _tf32), (BENCHMARK, _benchmark)):
            if self.wanted.get(name):
                self._try(name, act)

    def compile(self, model: Any) -> None:
        """Compile the model in place, where that is asked for."""
        if self.wanted.get(COMPILE) and isinstance(model, torch.nn.Module):
            self._try(COMPILE, model.compile)

    def _of(self, group: str) -> dict[str, Any]:
        return {name.partition(".")[2]: v for name, v in self.wanted.items() if name.startswith(f"{group}.")}

    def _try(self, name: str, act: Any) -> None:
        try:
            act()
        except Exception as e:  # noqa: BLE001 - a trial that cannot be made is told, not raised into training
            say(f"{name} could not be set: {explain(e)}")
        else:
            self._take(name)

    def _take(self, name: str) -> None:
        if name not in self.took:
            self.took.append(name)


def _tf32() -> None:
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _benchmark() -> None:
    torch.backends.cudnn.benchmark = True
