"""Under torchrun: count the collectives of one FSDP2 step of three models, for each way to reshard, into a file."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.debug import CommDebugMode

RESHARD = (None, True, False)


class Blocks(nn.Module):
    """An embedding, three blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class TwoStacks(nn.Module):
    """Two lists of layers and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.decoder = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.encoder, *self.decoder):
            x = torch.relu(layer(x))
        return x


# how to make it, its layers, its input
MODELS = {
    "sequential": (lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), list, torch.ones(4, 8)),
    "blocks": (Blocks, lambda model: list(model.layers), torch.ones(2, 4, dtype=torch.long)),
    "two stacks": (TwoStacks, lambda model: [*model.encoder, *model.decoder], torch.ones(4, 8)),
}


def count() -> dict[str, dict[str, int]]:
    """Return the gathers and scatters of the second step of each model."""
    found = {}
    for name, (make, layers_of, batch) in MODELS.items():
        for reshard in RESHARD:
            model = make()
            for unit in (*layers_of(model), model):
                fully_shard(unit, reshard_after_forward=reshard)
            for _ in range(2):
                with CommDebugMode() as counts:
                    model(batch).sum().backward()
            made = {str(op): number for op, number in counts.get_comm_counts().items()}
            found[f"{name} {reshard}"] = {
                "all_gather": made.get("c10d._allgather_base_", 0),
                "reduce_scatter": made.get("c10d._reduce_scatter_base_", 0),
            }
    return found


if __name__ == "__main__":
    dist.init_process_group("gloo")
    counted = count()
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(counted))
    dist.destroy_process_group()
