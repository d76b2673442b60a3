"""What is trained in a benchmark: a model, its data and its loss, built from a description.

    spec = WorkloadSpec(name="gpt", d_model=256, batch_size=8)
    work = workload(spec, torch.device("cpu"))
    for batch in work.batches(rank=0, world_size=2):
        work.loss(work.model, batch).backward()

gpt, deepseek           see `models`
mlp                     a stack of linear layers
transformers:llama      a model type of Transformers with the spec's sizes (its own with `options["sizes"]` not "spec")
transformers:FILE.json  the file's sizes; both with random weights and without dropout
torchbench:MODEL        a model of TorchBench with its example inputs, trained on the mean square of its outputs
module:function         called with the spec and the device; imported from the current folder or the path

A function returns (model, batches, loss) or a dictionary of these. Model: an nn.Module. Batches: a Dataset of samples,
or a list, a DataLoader or an endless iterable of batches. Loss: `loss(model, batch)`.

    def tiny(spec, device):
        data = torch.utils.data.TensorDataset(torch.randn(1000, 8), torch.randn(1000, 1))
        return nn.Linear(8, 1), data, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()
"""

import inspect
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from stepscope.errors import UsageError
from stepscope.lab.bench.config import WorkloadSpec
from stepscope.lab.bench.measure import BatchCount
from stepscope.lab.bench.models import DeepSeek, Gpt, deepseek_flops, gpt_flops
from stepscope.side_file import read_side_json

_SAMPLES = 1 << 20
_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}
_PARTS = ("model", "batches", "loss")
_TRANSFORMERS_SIZES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "seq_len",
}

Objective = Callable[[nn.Module, Any], torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A model with its data and loss, on its device.

    Sample i is the same in every process, whatever the world size. `model_flops` are of one rank's forward and backward
    by formula; None: counted by running it.
    """

    spec: WorkloadSpec
    model: nn.Module
    device: torch.device
    samples: Dataset[Any]
    objective: Objective
    model_flops: int | None = None

    def batches(
        self, *, rank: int = 0, world_size: int = 1, fed: BatchCount | None = None
    ) -> Generator[Any, None, None]:
        """Return this rank's batches on the device, each counted in `fed`; copies from pinned memory do not block."""
        for batch in self._host_batches(rank=rank, world_size=world_size):
            if fed is not None:
                fed.counted(batch)
            yield tree_map_only(torch.Tensor, lambda t: t.to(self.device, non_blocking=True), batch)
        raise ValueError("the workload's batches ended; give a Dataset, a list or an endless iterable")

    def _host_batches(self, *, rank: int, world_size: int) -> Iterator[Any]:
        order = _RankBatches(self.spec.batch_size, rank, world_size, len(self.samples))
        return iter(DataLoader(self.samples, batch_sampler=order, **dict(self.spec.option("loader", {}))))

    def loss(self, model: nn.Module, batch: Any) -> torch.Tensor:
        """Return the loss of a batch; fp16 and bf16 by autocast, tf32 is a switch of the process (see `workload`)."""
        dtype = _AUTOCAST.get(self.spec.precision)
        with torch.autocast(self.device.type, dtype) if dtype else nullcontext():
            return self.objective(model, batch)

    def flops_per_step(self) -> int:
        """Return model FLOPs of one rank's forward and backward: multiply-add is 2, attention in full, no recompute."""
        return counted_flops(self) if self.model_flops is None else self.model_flops


def counted_flops(work: Workload) -> int:
    """Return the FLOPs of one forward and backward as PyTorch counts them, unfused so that nothing repeats."""
    from torch.utils.flop_counter import FlopCounterMode

    batch = next(work.batches())
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        work.loss(work.model, batch).backward()
    work.model.zero_grad(set_to_none=True)
    return int(counter.get_total_flops())


def workload(spec: WorkloadSpec, device: torch.device | str) -> Workload:
    """Return the workload of a description; weights depend on the seed alone.

    On CUDA devices the process's switch for tf32 products is set to the description's precision.
    """
    where = torch.device(device)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high" if spec.precision == "tf32" else "highest")
    torch.manual_seed(spec.seed)
    prefix, _, rest = spec.name.partition(":")
    flops = None
    samples: Any = _CountingText(spec)
    loss: Objective = _next_token_loss
    if spec.name == "gpt":
        model, flops = Gpt(spec), gpt_flops(spec)
    elif spec.name == "deepseek":
        model, flops = DeepSeek(spec), deepseek_flops(spec)
    elif spec.name == "mlp":
        # Forward, gradient of weights, gradient of inputs: each 2 B D^2 per layer; the data needs no gradient.
        flops = 2 * spec.batch_size * spec.d_model**2 * (3 * spec.num_layers - 1)
        model, samples, loss = MlpStack(spec.d_model, spec.num_layers), _PlantedVectors(spec), _mlp_loss
    elif rest and prefix == "transformers":
        model, samples, loss = _transformers(spec, rest)
    elif rest and prefix == "torchbench":
        model, samples, loss = _torchbench(spec, where, rest)
    elif rest:
        model, samples, loss = _own_workload(spec, where)
    else:
        names = "gpt, deepseek, mlp, transformers:CONFIG, torchbench:MODEL, module:function"
        raise UsageError(f"unknown workload {spec.name!r}; use one of {names}")
    if isinstance(samples, IterableDataset):
        samples = DataLoader(samples, batch_size=spec.batch_size)
    if isinstance(samples, Dataset):
        return Workload(spec, model.to(where), where, samples, loss, flops)
    return GivenBatches(spec, model.to(where), where, Dataset(), loss, given=samples)


@dataclass(frozen=True)
class GivenBatches(Workload):
    """A workload of ready-made batches, which start over at their end.

    They are those of all ranks, of which rank r uses every world_size-th from the r-th on, or this rank's `own`.
    """

    given: Iterable[Any] = ()
    own: bool = False

    def _host_batches(self, *, rank: int, world_size: int) -> Iterator[Any]:
        return self._endless() if self.own else islice(self._endless(), rank, None, world_size)

    def _endless(self) -> Iterator[Any]:
        for epoch in count():
            set_epoch = getattr(getattr(self.given, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
            empty = True
            for batch in self.given:
                empty = False
                yield batch
            if empty and self.own:
                raise UsageError("data: no batches are left; an iterator cannot start over, give a list")
            if empty:
                return


class _RankBatches(Sampler[list[int]]):  # type: ignore[misc]
    """Endless batches of indices: step s of rank r uses the r-th part of the s-th global batch.

    A global batch is the same whether one rank uses it whole or several share it.
    """

    def __init__(self, batch_size: int, rank: int, world_size: int, count: int) -> None:
        self._batch, self._rank, self._world, self._count = batch_size, rank, world_size, count

    def __iter__(self) -> Iterator[list[int]]:
        first = self._rank * self._batch
        while True:
            yield [(first + i) % self._count for i in range(self._batch)]
            first += self._world * self._batch


class Synthetic(Dataset[tuple[torch.Tensor, torch.Tensor]]):  # type: ignore[misc]
    """Samples of our own, each made from its index."""

    def __init__(self, spec: WorkloadSpec, vocab_size: int | None = None) -> None:
        self._seq_len, self._width, self._seed = spec.seq_len, spec.d_model, spec.seed
        self._vocab, self._cost_us = vocab_size or spec.vocab_size, spec.option("preprocess_us", 0)

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        until_ns = time.perf_counter_ns() + 1000 * self._cost_us
        while time.perf_counter_ns() < until_ns:
            pass
        return self._sample(torch.Generator().manual_seed(self._seed * _SAMPLES + index))

    def _sample(self, own: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        raise NotImplementedError


class _CountingText(Synthetic):
    def _sample(self, own: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        start = torch.randint(self._vocab, (), generator=own)
        stride = torch.randint(1, 9, (), generator=own)
        tokens = (start + stride * torch.arange(self._seq_len + 1)) % self._vocab
        return tokens[:-1], tokens[1:]


class _PlantedVectors(Synthetic):
    def _sample(self, own: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(self._width, generator=own)
        return x, torch.sin(x.roll(1))


def _next_token_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    tokens, following = batch
    return nn.functional.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())


class MlpStack(nn.Module):  # type: ignore[misc]
    """Square linear layers, each but the last followed by a GELU."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = nn.functional.gelu(layer(x))
        return self.layers[-1](x)


def _mlp_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]).float(), batch[1])


def _own_workload(spec: WorkloadSpec, device: torch.device) -> tuple[nn.Module, Any, Objective]:
    name = spec.name
    module, _, function = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        make = getattr(import_module(module), function)
        inspect.signature(make).bind(spec, device)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"workload {name!r}: cannot import its module: {error}; start the command in its folder"
        ) from error
    except AttributeError as error:
        raise UsageError(f"module {module} has no function {function!r}") from error
    except TypeError as error:
        raise UsageError(f"cannot call {name!r} with (spec, device): {error}") from error
    made = make(spec, device)
    if isinstance(made, dict):
        if missing := [part for part in _PARTS if part not in made]:
            raise UsageError(f"{name!r} has to return {', '.join(_PARTS)}, but {', '.join(missing)} is missing")
        made = tuple(made[part] for part in _PARTS)
    if not isinstance(made, tuple) or len(made) != 3:
        raise UsageError(f"{name!r} has to return (model, batches, loss), not {type(made).__name__}")
    model, batches, loss = made
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model of {name!r} has to be an nn.Module, not {type(model).__name__}")
    if not isinstance(batches, Dataset) and not isinstance(batches, Iterable):
        raise UsageError(f"the batches of {name!r} have to be a Dataset or an iterable, not {type(batches).__name__}")
    if not callable(loss):
        raise UsageError(f"the loss of {name!r} has to be a function of (model, batch), not {type(loss).__name__}")
    return model, batches, loss


def _torchbench(spec: WorkloadSpec, device: torch.device, name: str) -> tuple[nn.Module, Any, Objective]:
    if find_spec("torchbenchmark") is None:
        raise UsageError(f"workload torchbench:{name} needs TorchBench, which is not installed here; install it")
    try:
        found = import_module("torchbenchmark").load_model_by_name(name)
    except (ModuleNotFoundError, RuntimeError) as error:
        raise UsageError(f"TorchBench has no usable model {name!r}: {error}") from error
    model, inputs = found(test="train", device=str(device), batch_size=spec.batch_size).get_module()

    def loss(model: nn.Module, inputs: Any) -> torch.Tensor:  # TorchBench's own losses are not part of its interface
        out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        tensors = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        return torch.stack([t.float().square().mean() for t in tensors]).sum()

    return model, [inputs], loss


def _transformers(spec: WorkloadSpec, argument: str) -> tuple[nn.Module, Any, Objective]:
    if find_spec("transformers") is None:
        raise UsageError(
            f"workload transformers:{argument} needs Transformers, which is not installed here; install it"
        )
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        if argument.endswith(".json"):
            given = read_side_json(argument).value
            config = AutoConfig.for_model(given.pop("model_type"), **given)
        else:
            sizes = {theirs: getattr(spec, ours) for theirs, ours in _TRANSFORMERS_SIZES.items()}
            sizes["intermediate_size"] = 4 * spec.d_model
            config = AutoConfig.for_model(argument, **(sizes if spec.option("sizes", "spec") == "spec" else {}))
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        what = "neither a config.json with model_type nor a model type such as llama"
        raise UsageError(f"{argument!r} is {what}: {_first_line(error)}") from error
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):  # variants of a step have to be comparable
            setattr(config, name, 0.0)
    try:
        model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, ImportError) as error:
        raise UsageError(f"{argument!r} is not a causal language model: {_first_line(error)}") from error
    model.config.use_cache = False

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return _next_token_loss(lambda tokens: model(input_ids=tokens).logits, batch)

    return model, _CountingText(spec, int(config.vocab_size)), loss


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
