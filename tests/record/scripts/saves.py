"""Trains and saves in every way that people do: `saves.py FOLDER [ddp]`. Its files must not depend on the recorder."""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist

folder, is_ddp = Path(sys.argv[1]), "ddp" in sys.argv
folder.mkdir()
torch.manual_seed(0)


class NamedFinding(torch.nn.Module):
    """With a hook of its own, whose number torch takes from one count for the whole process."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).relu())


def unchanged(module: torch.nn.Module, args: object) -> None:
    """A user's hook."""


model: torch.nn.Module = NamedFinding()
model.first.register_forward_pre_hook(unchanged)
if is_ddp:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
average = torch.optim.swa_utils.AveragedModel(model)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    average.update_parameters(model)
    if step % 4 == 3:
        copied = copy.deepcopy(model)
        for name, what in {
            "model": model,
            "copy": copied,
            "average": average,
            "optimizer": optimizer,
            "scheduler": scheduler,
            "state": [model.state_dict(), optimizer.state_dict(), scheduler.state_dict()],
        }.items():
            torch.save(what, folder / f"{step}.{name}.pt")
        # Plain pickles of tensors hold addresses: no two runs have the same. What is in them besides is compared.
        (folder / f"{step}.state.txt").write_text(repr([list(m.__reduce_ex__(4)[2]) for m in model.modules()]))
    print(step, loss.item().hex())
if is_ddp:
    dist.destroy_process_group()
