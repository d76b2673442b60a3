"""What would one step of a large job communicate and hold? Simulated in one process, without data.

    python -m stepscope.bench.simulate --layers 32 --d-model 4096 --heads 32 --vocab 32000 --seq-len 2048 \\
        --strategy zero3 --data 128 --tensor 8 --out step.json

The process takes the part of rank 0 of a job whose other ranks do not exist (PyTorch's fake process group), the model
has sizes but no data. PyTorch's own FSDP and tensor parallelism run unchanged, so what they would send is seen exactly.
DDP's reducer cannot run without data: its buckets are filled here by its own rules.
"""

import argparse
import contextlib
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from stepscope.bench.session.exit_code import run_to_exit_code
from stepscope.bench.simulate.model import Shape, Transformer
from stepscope.bench.simulate.parallel import DdpBuckets, Mesh, parallel_mesh, parallelize
from stepscope.bench.simulate.recorder import CollectiveRecorder, MemoryRecorder, local_tensors
from stepscope.contract.run_folder import SCHEMA, atomic_write
from stepscope.errors import UsageError
from stepscope.json_text import json_text

_KIND = "stepscope simulated step"
_STRATEGIES = ("ddp", "zero2", "zero3")


@dataclass(frozen=True)
class Job:
    """The job whose rank 0 is simulated."""

    shape: Shape
    strategy: str = "zero3"
    data: int = 1
    tensor: int = 1
    expert: int = 1
    micro_batch: int = 1
    #: fp32; amp: computation cast to bf16; mixed: FSDP computes in bf16 and keeps fp32 shards
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

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return self.data * self.tensor


def simulate_step(job: Job) -> dict[str, Any]:
    """Return the collectives and the memory of one step of rank 0; nothing else may use the default group."""
    begin = time.monotonic()
    with _fake_ranks(job.world_size):
        mesh = parallel_mesh(job.data, job.tensor, job.expert)
        with torch.device("meta"):
            model = Transformer(job.shape, expert_group=mesh.expert_group)
        model.checkpoint = job.checkpoint
        parameters = sum(p.numel() for p in model.parameters())
        sync = parallelize(model, mesh, job.strategy, mixed=job.precision == "mixed")
        with FakeTensorMode(allow_non_fake_inputs=True):
            model.to_empty(device="cpu")
            collectives, memory = _one_step(model, job, mesh, sync)
    return {
        "schema": SCHEMA,
        "kind": _KIND,
        "job": asdict(job),
        "world_size": job.world_size,
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
    """Return what one training step communicates and holds, on fake or real tensors."""
    optimizer = _optimizer(model, job)
    _prime(optimizer)
    if sync:
        sync.allocate()
    recorder, memory = CollectiveRecorder(mesh.names), MemoryRecorder()
    tokens = torch.zeros((job.micro_batch, job.shape.seq_len), dtype=torch.int64)
    memory.note(local_tensors([*model.parameters(), *_states(optimizer), tokens, *(sync.buffers if sync else ())]))
    gradients: list[torch.Tensor] = []
    with mesh.loss_context(), recorder, memory:
        for phase in ("forward", "backward", "optimizer step"):
            recorder.when = memory.when = phase
            if phase == "forward":
                loss = _loss(model, tokens, job)
            elif phase == "backward":
                loss.backward()
                if sync:
                    sync.finish()
                gradients = local_tensors(p.grad for p in model.parameters() if p.grad is not None)
            else:
                optimizer.step()
    return _counted(recorder), _parts(memory, model, optimizer, gradients, sync)


def _loss(model: nn.Module, tokens: torch.Tensor, job: Job) -> torch.Tensor:
    cast = torch.autocast("cpu", torch.bfloat16) if job.precision == "amp" else contextlib.nullcontext()
    with cast:
        return F.cross_entropy(model(tokens).float().flatten(0, 1), tokens.flatten())


def _optimizer(model: nn.Module, job: Job) -> torch.optim.Optimizer:
    if job.optimizer == "adam":
        return torch.optim.AdamW(model.parameters(), foreach=job.foreach, fused=not job.foreach)
    return torch.optim.SGD(model.parameters())  # makes no copies either way


def _prime(optimizer: torch.optim.Optimizer) -> None:
    """Make the optimizer's states, which exist from the second step on."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]
    for p in weights:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    optimizer.zero_grad()


def _states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]


def _counted(recorder: CollectiveRecorder) -> list[dict[str, Any]]:
    """Return equal collectives counted together, in order of appearance."""
    return [{**asdict(c), "bytes": c.size_bytes, "count": n} for c, n in Counter(recorder.seen).items()]


def _parts(
    memory: MemoryRecorder,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    gradients: list[torch.Tensor],
    sync: DdpBuckets | None,
) -> dict[str, Any]:
    parts = {
        "parameters": memory.peak_of(local_tensors(model.parameters())),
        "optimizer": memory.peak_of(local_tensors(_states(optimizer))),
        "gradients": memory.peak_of(gradients),
        "buckets": memory.peak_of(sync.buffers) if sync else 0,
    }
    parts["activations and temporary"] = memory.peak_bytes - sum(parts.values())
    return {"peak_bytes": memory.peak_bytes, "peak_when": memory.peak_when, "parts": parts}


@contextlib.contextmanager
def _fake_ranks(world_size: int) -> Iterator[None]:
    """Be rank 0 of ranks that do not exist."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise UsageError("torch.distributed is already initialised; simulate in a process of its own")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 once the simulated step is written."""
    job, out = _arguments(argv)
    text = json_text(simulate_step(job), indent=1) + "\n"
    with atomic_write(out) as f:
        f.write(text.encode())
    return 0


def _arguments(argv: Sequence[str] | None) -> tuple[Job, str]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("layers", "d-model", "heads", "vocab", "seq-len"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("mlp-width", "kv-heads", "experts", "experts-per-token"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--gated-mlp", action="store_true")
    parser.add_argument("--no-positions", action="store_true", help="without a learned position table")
    parser.add_argument("--no-norm-bias", action="store_true")
    parser.add_argument("--strategy", choices=_STRATEGIES, default="zero3")
    for name in ("data", "tensor", "expert", "micro-batch"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--precision", choices=("fp32", "amp", "mixed"), default="fp32")
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default="adam")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--fused", action="store_true", help="an optimizer that makes no copies")
    parser.add_argument("--out", required=True)
    a = parser.parse_args(argv)
    shape = Shape(
        layers=a.layers, d_model=a.d_model, heads=a.heads, vocab=a.vocab, seq_len=a.seq_len,
        mlp_width=a.mlp_width or 4 * a.d_model, gated_mlp=a.gated_mlp, kv_heads=a.kv_heads or None,
        experts=a.experts, experts_per_token=a.experts_per_token, norm_bias=not a.no_norm_bias,
        learned_positions=not a.no_positions,
    )  # fmt: skip
    job = Job(
        shape, a.strategy, data=a.data, tensor=a.tensor, expert=a.expert, micro_batch=a.micro_batch,
        precision=a.precision, optimizer=a.optimizer, checkpoint=a.checkpoint, foreach=not a.fused,
    )  # fmt: skip
    return job, a.out


if __name__ == "__main__":
    sys.exit(run_to_exit_code("stepscope.bench.simulate.step", main))
