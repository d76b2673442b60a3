"""A stack of linear layers with activations between: the simplest model whose layers are all alike."""

import torch
from torch import nn

from stepscope.bench.workloads.loader import PlantedVectors
from stepscope.bench.workloads.workload import Workload, WorkloadSpec


class MlpStack(nn.Module):  # type: ignore[misc]
    """`num_layers` square linear layers, each but the last followed by a GELU."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output, in the shape of the input."""
        for layer in self.layers[:-1]:
            x = nn.functional.gelu(layer(x))
        return self.layers[-1](x)


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    return Workload(
        spec=spec,
        model=MlpStack(spec.d_model, spec.num_layers).to(device),
        device=device,
        samples=PlantedVectors(width=spec.d_model, seed=spec.seed, cost_us=spec.option("preprocess_us", 0)),
        objective=_loss,
        model_flops=_flops(spec),
    )


def _loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return nn.functional.mse_loss(model(x).float(), y)


def _flops(spec: WorkloadSpec) -> int:
    return 2 * spec.batch_size * spec.d_model**2 * (3 * spec.num_layers - 1)
