"""A gradient in 256 numbers, so that two processes can tell how far their gradients are apart.

Every element gets a random sign and is added to one of 256 sums. The squared distance of two sketches is that of the
gradients on average; with 256 sums it is off by about 9 % (count sketch, Charikar et al. 2002).
"""

from collections.abc import Iterable

import torch

_SUMS = 256


@torch.no_grad()  # type: ignore[untyped-decorator]
def gradient_sketch(parameters: Iterable[torch.Tensor], *, device: torch.device, seed: int = 0) -> list[float]:
    """Return the sketch of all gradients together; the same kind of device, seed and order give comparable ones."""
    total = torch.zeros(_SUMS, dtype=torch.float64)
    for index, parameter in enumerate(parameters):
        if parameter.grad is not None:
            total += _sketched(_whole(parameter.grad).to(device), seed=seed + index).cpu()
    return [float(value) for value in total]


def _sketched(gradient: torch.Tensor, *, seed: int) -> torch.Tensor:
    flat = gradient.reshape(-1).double()
    generator = torch.Generator(flat.device).manual_seed(seed)
    signs = torch.randint(2, flat.shape, generator=generator, device=flat.device) * 2 - 1
    padded = torch.nn.functional.pad(flat * signs, (0, -len(flat) % _SUMS))
    return padded.view(-1, _SUMS).sum(0)


def _whole(gradient: torch.Tensor) -> torch.Tensor:
    if not hasattr(gradient, "to_local"):
        return gradient
    return gradient.full_tensor() if gradient.device_mesh.size() > 1 else gradient.to_local()
