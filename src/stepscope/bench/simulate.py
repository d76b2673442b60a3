"""What would one step of a large job communicate and hold? Simulated in one process, without data.

    python -m stepscope.bench.simulate '{"shape": {"layers": 32, "d_model": 4096, ...}, "strategy": "zero3", "data": 8}'

The process takes the part of rank 0 of a job whose other ranks do not exist (PyTorch's fake process group), the model
has sizes but no data. PyTorch's own FSDP and tensor parallelism run unchanged, so what they would send is seen exactly.
DDP's reducer cannot run without data: its buckets are filled here by its own rules.
"""

import contextlib
import json
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepscope.bench.rank import run_to_exit_code
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import UsageError
from stepscope.units import json_text


@dataclass(frozen=True)
class Shape:
    """The numbers of the model."""

    layers: int
    d_model: int
    heads: int
    vocab: int
    seq_len: int
    mlp_width: int
    gated_mlp: bool = False
    kv_heads: int | None = None
    #: experts of each layer; 0: a plain MLP
    experts: int = 0
    experts_per_token: int = 0
    norm_bias: bool = True
    learned_positions: bool = True


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention with heads that may share keys and values."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.width = shape.d_model // shape.heads
        kv_width = self.width * (shape.kv_heads or shape.heads)
        self.query = nn.Linear(shape.d_model, shape.d_model, bias=False)
        self.key = nn.Linear(shape.d_model, kv_width, bias=False)
        self.value = nn.Linear(shape.d_model, kv_width, bias=False)
        self.out = nn.Linear(shape.d_model, shape.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (p(x).unflatten(-1, (-1, self.width)).transpose(1, 2) for p in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.out(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):  # type: ignore[misc]
    """Two matrices, or three with a gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, shape.mlp_width, bias=False)
        self.gate = nn.Linear(shape.d_model, shape.mlp_width, bias=False) if shape.gated_mlp else None
        self.down = nn.Linear(shape.mlp_width, shape.d_model, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        return self.down(F.gelu(up) if self.gate is None else F.silu(self.gate(x)) * up)


class ExpertMlp(nn.Module):  # type: ignore[misc]
    """This rank's experts; tokens are routed evenly, so that every simulated rank sends and receives the same."""

    def __init__(self, shape: Shape, group: Any) -> None:
        super().__init__()
        self.group, self.per_token = group, shape.experts_per_token
        ranks = dist.get_world_size(group)
        self.experts = nn.ModuleList(Mlp(shape) for _ in range(shape.experts // ranks))
        self.router = nn.Linear(shape.d_model, shape.experts, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weight, _ = self.router(tokens).softmax(-1).topk(self.per_token, dim=-1)
        sent = tokens.repeat_interleave(self.per_token, dim=0)
        received = _Exchange.apply(sent, self.group)
        done = torch.cat([e(part) for e, part in zip(self.experts, received.chunk(len(self.experts)), strict=True)])
        back = _Exchange.apply(done, self.group).unflatten(0, (-1, self.per_token))
        return (back * weight.unsqueeze(-1)).sum(1).view_as(x)


class _Exchange(torch.autograd.Function):  # type: ignore[misc]
    """An even all-to-all whose backward is another one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        out = torch.empty_like(x)
        dist.all_to_all_single(out, x.contiguous(), group=group)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        out = torch.empty_like(gradient)
        dist.all_to_all_single(out, gradient.contiguous(), group=ctx.group)
        return out, None


class Block(nn.Module):  # type: ignore[misc]
    """One layer."""

    def __init__(self, shape: Shape, expert_group: Any) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.mlp = ExpertMlp(shape, expert_group) if shape.experts else Mlp(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):  # type: ignore[misc]
    """Embedding, layers, norm and head."""

    def __init__(self, shape: Shape, *, expert_group: Any = None) -> None:
        super().__init__()
        self.shape = shape
        self.tokens = nn.Embedding(shape.vocab, shape.d_model)
        self.positions = nn.Embedding(shape.seq_len, shape.d_model) if shape.learned_positions else None
        self.layers = nn.ModuleList(Block(shape, expert_group) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.d_model, bias=shape.norm_bias)
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False)
        self.checkpoint = False

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            if self.checkpoint:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            else:
                x = layer(x)
        return self.head(self.norm(x))


_BUCKET_BYTES = 25 * 2**20
_FIRST_BUCKET_BYTES = 2**20


@dataclass(frozen=True)
class Mesh:
    """The dimensions of a job and what their groups are called."""

    data: DeviceMesh
    tensor: DeviceMesh | None
    expert_group: Any
    #: ranks of each of this rank's groups -> dp, tp or ep
    names: dict[tuple[int, ...], str]

    def loss_context(self) -> Any:
        """Return what the loss is computed in: with a split vocabulary every rank has a part of the logits."""
        return loss_parallel() if self.tensor is not None else contextlib.nullcontext()


def parallel_mesh(data: int, tensor: int, expert: int = 1, *, device: str = "cpu") -> Mesh:
    """Return the mesh of a job; every rank of the default group has to call it."""
    whole = init_device_mesh(device, (data, tensor), mesh_dim_names=("dp", "tp"))
    names = {tuple(dist.get_process_group_ranks(whole["tp"].get_group())): "tp"} if tensor > 1 else {}
    names[tuple(dist.get_process_group_ranks(whole["dp"].get_group()))] = "dp"
    expert_group = None
    if expert > 1:
        inner = init_device_mesh(device, (data // expert, expert), mesh_dim_names=("replica", "ep"))
        expert_group = inner["ep"].get_group()
        names = {**names, tuple(dist.get_process_group_ranks(expert_group)): "ep"}
    return Mesh(whole["dp"], whole["tp"] if tensor > 1 else None, expert_group, names)


def parallelize(model: Transformer, mesh: Mesh, strategy: str, *, mixed: bool = False) -> "DdpBuckets | None":
    """Return DDP's buckets where the strategy has them, after spreading the model in place.

    With `mixed` FSDP keeps fp32 shards, gathers weights and scatters gradients in bf16.
    """
    if mesh.tensor is not None:
        _split_matrices(model, mesh.tensor)
    if strategy == "ddp":
        return DdpBuckets(model, mesh.data.get_group()) if mesh.data.size() > 1 else None
    ignored = {p for layer in model.layers for p in _expert_weights(layer)} if mesh.expert_group else set()
    given: dict[str, Any] = {"mesh": mesh.data, "ignored_params": ignored}
    if mixed:
        given["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for layer in model.layers:
        fully_shard(layer, reshard_after_forward=strategy == "zero3", **given)
    fully_shard(model, reshard_after_forward=False, **given)
    return None


class DdpBuckets:
    """Gradients all-reduced in buckets as PyTorch's DDP fills them: in the order in which they become ready."""

    def __init__(self, model: nn.Module, group: Any) -> None:
        self.buffers: list[torch.Tensor] = []
        self._model, self._group = model, group
        self._ready: list[torch.Tensor] = []
        self._filled_bytes, self._limit_bytes = 0, _FIRST_BUCKET_BYTES

    def allocate(self) -> None:
        """Make the buffers, which live as long as the job and are as large as all gradients, and wait for those."""
        for parameter in self._model.parameters():
            parameter.register_post_accumulate_grad_hook(self._on_ready)
        local = _local(self._model.parameters())
        self.buffers = [torch.empty(sum(p.numel() for p in local), dtype=local[0].dtype, device=local[0].device)]

    def finish(self) -> None:
        """Reduce the last bucket and start over."""
        self._reduce()
        self._limit_bytes = _FIRST_BUCKET_BYTES

    def _on_ready(self, parameter: torch.Tensor) -> None:
        [gradient] = _local([parameter.grad])
        self._ready.append(gradient)
        self._filled_bytes += gradient.numel() * gradient.element_size()
        if self._filled_bytes >= self._limit_bytes:
            self._reduce()

    def _reduce(self) -> None:
        if self._ready:
            count = sum(g.numel() for g in self._ready)
            dist.all_reduce(self.buffers[0][:count], group=self._group)
        self._ready, self._filled_bytes, self._limit_bytes = [], 0, _BUCKET_BYTES


def _split_matrices(model: Transformer, mesh: DeviceMesh) -> None:
    """Split every matrix over the mesh: columns first, rows second, the vocabulary at both ends."""
    whole = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
    for layer in model.layers:
        plan = {
            "attention": whole,
            **{f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
            "attention.out": RowwiseParallel(),
            "mlp": whole,
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(),
        }
        if model.shape.gated_mlp:
            plan["mlp.gate"] = ColwiseParallel()
        parallelize_module(layer, mesh, plan)
    ends = {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)


def _expert_weights(layer: nn.Module) -> list[nn.Parameter]:
    experts = getattr(layer.get_submodule("mlp"), "experts", None)
    return list(experts.parameters()) if experts is not None else []


_NAMESPACES = ("c10d", "_c10d_functional")
_NAMED = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "send", "recv")
_BLOCK_BYTES = 512  # CUDA's caching allocator hands out multiples of this


@dataclass(frozen=True)
class Job:
    """The job whose rank 0 is simulated.

    Precision amp: computation cast to bf16; mixed: FSDP computes in bf16 and keeps fp32 shards.
    """

    shape: Shape
    strategy: str = "zero3"
    data: int = 1
    tensor: int = 1
    expert: int = 1
    micro_batch: int = 1
    precision: str = "fp32"
    optimizer: str = "adam"
    checkpoint: bool = False
    foreach: bool = True

    def __post_init__(self) -> None:
        for name in ("data", "tensor", "expert", "micro_batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} has to be at least 1, not {getattr(self, name)}")
        if self.data % self.expert or (self.expert > 1 and self.tensor > 1):
            raise UsageError(
                f"expert ranks have to divide the {self.data} data ranks, without tensor ranks; {self.expert} do not"
            )
        if self.precision == "mixed" and self.strategy == "ddp":
            raise UsageError("mixed precision needs zero2 or zero3, not ddp; use amp")


def simulate_step(job: Job) -> dict[str, Any]:
    """Return the collectives and the memory of one step of rank 0; nothing else may use the default group."""
    begin = time.monotonic()
    if dist.is_initialized():
        raise UsageError("torch.distributed is already initialised; simulate in a separate process")
    world_size = job.data * job.tensor
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        mesh = parallel_mesh(job.data, job.tensor, job.expert)
        with torch.device("meta"):
            model = Transformer(job.shape, expert_group=mesh.expert_group)
        model.checkpoint = job.checkpoint
        parameters = sum(p.numel() for p in model.parameters())
        sync = parallelize(model, mesh, job.strategy, mixed=job.precision == "mixed")
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            collectives, memory = _one_step(model, job, mesh, sync)
    finally:
        dist.destroy_process_group()
    return {
        "schema": SCHEMA,
        "kind": "stepscope simulated step",
        "job": asdict(job),
        "world_size": world_size,
        "parameters": parameters,
        "collectives": collectives,
        "memory": memory,
        "took_s": round(time.monotonic() - begin, 2),
        "process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "torch": str(torch.__version__),
    }


def _one_step(
    model: nn.Module, job: Job, mesh: Mesh, sync: DdpBuckets | None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    adam = job.optimizer == "adam"  # SGD makes no copies either way
    how = {"foreach": job.foreach, "fused": not job.foreach} if adam else {}
    optimizer = (torch.optim.AdamW if adam else torch.optim.SGD)(model.parameters(), **how)
    for p in model.parameters():  # the optimizer's states exist from the second step on
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()
    states = _local(v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor))
    if sync:
        sync.allocate()
    buffers = sync.buffers if sync else []
    recorder = _StepRecorder(mesh.names)
    tokens = torch.zeros((job.micro_batch, job.shape.seq_len), dtype=torch.int64)
    recorder.count([*_local(model.parameters()), *states, tokens, *buffers])
    cast = torch.autocast("cpu", torch.bfloat16) if job.precision == "amp" else contextlib.nullcontext()
    with mesh.loss_context(), recorder:
        with cast:
            loss = F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())
        recorder.when = "backward"
        loss.backward()
        if sync:
            sync.finish()
        gradients = _local(p.grad for p in model.parameters() if p.grad is not None)
        recorder.when = "optimizer step"
        optimizer.step()
    parts = {
        "parameters": recorder.peak_of(_local(model.parameters())),
        "optimizer": recorder.peak_of(states),
        "gradients": recorder.peak_of(gradients),
        "buckets": recorder.peak_of(buffers),
    }
    parts["activations and temporary"] = recorder.peak_bytes - sum(parts.values())
    memory = {"peak_bytes": recorder.peak_bytes, "peak_when": recorder.peak_when, "parts": parts}
    return [{**c._asdict(), "bytes": c.size_bytes, "count": n} for c, n in recorder.collectives.items()], memory


class _Collective(NamedTuple):
    op: str
    group: str
    ranks: int
    size_bytes: int
    when: str


class _StepRecorder(TorchDispatchMode):  # type: ignore[misc]
    """Records every collective and allocation that PyTorch dispatches, on fake or real tensors."""

    def __init__(self, group_names: dict[tuple[int, ...], str]) -> None:
        super().__init__()
        self.when = self.peak_when = "forward"
        self.collectives: Counter[_Collective] = Counter()
        self.peak_bytes = self._live_bytes = 0
        self._group_names = group_names
        # Addresses of live storages -> their numbers: addresses are used again, numbers are not.
        self._numbers: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._peak_sizes: dict[int, int] = {}
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(t, DTensor) for t in types):
            return NotImplemented  # so that its local operators are dispatched one by one
        if func.namespace in _NAMESPACES:
            plain = func.__name__.replace("_", "").lower()
            op = next((op for op in _NAMED if op.replace("_", "") in plain), None)
            if op:  # not waits and barriers
                self._add_collective(op, func, args)
        out = func(*args, **(kwargs or {}))
        self.count(leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor))
        return out

    def __enter__(self) -> Any:
        """Start; FSDP frees gathered weights by resizing their storages in place."""
        self._plain_resize = plain = torch.UntypedStorage.resize_

        def resize(storage: torch.UntypedStorage, size: int) -> Any:
            result = plain(storage, size)
            if storage._cdata in self._numbers:
                self._set_size(self._numbers[storage._cdata], int(size))
            return result

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        torch.UntypedStorage.resize_ = self._plain_resize
        super().__exit__(*exc)

    def count(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the storages of these tensors from now until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._numbers:
                self._count += 1
                self._numbers[storage._cdata] = self._count
                self._sizes[self._count] = 0
                weakref.finalize(storage, self._free, storage._cdata)
                self._set_size(self._count, storage.nbytes())

    def peak_of(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the bytes of the peak in the storages of these tensors."""
        numbers = {self._numbers.get(t.untyped_storage()._cdata, 0) for t in tensors}
        return sum(self._peak_sizes.get(number, 0) for number in numbers)

    def _set_size(self, number: int, size_bytes: int) -> None:
        size_bytes = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        self._live_bytes += size_bytes - self._sizes[number]
        self._sizes[number] = size_bytes
        if self._live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_when, self._peak_sizes = self._live_bytes, self.when, dict(self._sizes)

    def _free(self, address: int) -> None:
        self._live_bytes -= self._sizes.pop(self._numbers.pop(address))

    def _add_collective(self, op: str, func: Any, args: tuple[Any, ...]) -> None:
        boxed = [a for a in args if isinstance(a, torch.ScriptObject) and "ProcessGroup" in str(a)]
        if boxed:
            group = dist.ProcessGroup.unbox(boxed[-1])
        else:  # functional collectives have the group's name
            name = next(arg for arg in reversed(args) if isinstance(arg, str))
            group = dist.distributed_c10d._resolve_process_group(name)
        tensors = [[t for t in tree_leaves(a) if isinstance(t, torch.Tensor)] for a in args]
        size = max((sum(t.numel() * t.element_size() for t in leaves) for leaves in tensors), default=0)
        if op == "all_gather" and func.namespace == "_c10d_functional":
            size *= group.size()
        kind = self._group_names.get(tuple(dist.get_process_group_ranks(group)), "dp")
        self.collectives[_Collective(op, kind, group.size(), size, self.when)] += 1


def _local(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return [t._local_tensor if isinstance(t, DTensor) else t for t in tensors]


def main(job: str) -> int:
    """Print the simulated step of a job, both as JSON; return 0."""
    given = json.loads(job)
    step = simulate_step(Job(**{**given, "shape": Shape(**given["shape"])}))
    sys.stdout.write(json_text(step) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.simulate", lambda: main(sys.argv[1])))
