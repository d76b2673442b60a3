"""Workloads: the same in every process, gradients everywhere, FLOPs as PyTorch counts them."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from stepscope.errors import UsageError  # noqa: E402
from stepscope.lab.bench.config import WorkloadSpec  # noqa: E402
from stepscope.lab.bench.workloads import Workload, counted_flops, workload  # noqa: E402

SMALL: dict[str, Any] = {
    "d_model": 32, "num_layers": 2, "num_heads": 4, "seq_len": 16, "vocab_size": 64, "batch_size": 2,
}  # fmt: skip
KINDS = [
    ("gpt", {}),
    ("gpt", {"kv_heads": 2, "attention": "unfused"}),
    ("deepseek", {}),
    ("deepseek", {"num_experts": 4, "experts_per_token": 1, "shared_experts": 0, "dense_layers": 0}),
    ("mlp", {}),
]


def built(name: str = "gpt", *, seed: int = 0, **options: object) -> Workload:
    return workload(WorkloadSpec(name, **SMALL, seed=seed, options=options), "cpu")


def gradients(work: Workload) -> list[Any]:
    work.loss(work.model, next(work.batches())).backward()
    return [p.grad for p in work.model.parameters()]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_gradients_reach_every_parameter_that_a_token_meets(name: str, options: dict) -> None:
    work = built(name, **options)
    loss = work.loss(work.model, next(work.batches()))
    loss.backward()
    without = [n for n, p in work.model.named_parameters() if p.grad is None or not p.grad.abs().sum()]
    assert loss.isfinite() and not [n for n in without if ".experts." not in n]


@pytest.mark.parametrize(("name", "options"), KINDS)
def test_flops_are_what_pytorch_counts(name: str, options: dict) -> None:
    work = built(name, **options)
    assert work.flops_per_step() == pytest.approx(counted_flops(work), rel=0.01)


@pytest.mark.parametrize("kernel", ["unfused", "math", "flash"])
@pytest.mark.parametrize("kv_heads", [1, 4])
def test_attention_kernels_agree(kernel: str, kv_heads: int) -> None:
    ours, reference = gradients(built(attention=kernel, kv_heads=kv_heads)), gradients(built(kv_heads=kv_heads))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(ours, reference, strict=True))


@pytest.mark.parametrize("name", ["gpt", "deepseek"])
@pytest.mark.parametrize("policy", ["selective", "half", "full"])
def test_recomputed_activations_give_the_same_gradients(name: str, policy: str) -> None:
    ours, reference = gradients(built(name, checkpointing=policy)), gradients(built(name))
    assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True) if a is not None)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"d_model": 0}, "d_model"),
        ({"precision": "fp12"}, "precision"),
        ({"name": "nonsense"}, "workload"),
        ({"num_heads": 5}, "num_heads"),
        ({"options": {"attention": "best"}}, "attention"),
        ({"name": "deepseek", "options": {"experts_per_token": 9}}, "experts_per_token"),
    ],
)
def test_a_wrong_field_is_named(fields: dict, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        workload(WorkloadSpec(**{**SMALL, **fields}), "cpu")


OWN = """
import torch
from torch import nn

def tiny(spec, device):
    data = torch.utils.data.TensorDataset(torch.randn(100, 8), torch.randn(100, 1))
    return nn.Linear(8, 1), data, lambda model, batch: ((model(batch[0]) - batch[1]) ** 2).mean()

def listed(spec, device):
    batches = [torch.full((2, 8), float(i)) for i in range(3)]
    return {"model": nn.Linear(8, 1), "batches": batches, "loss": lambda model, batch: model(batch).mean()}

def loader(spec, device):
    given = torch.utils.data.DataLoader(torch.arange(3.0), batch_size=1)
    return nn.Linear(1, 1), given, lambda model, batch: model(batch).mean()

def once(spec, device):
    return nn.Linear(1, 1), (torch.ones(1) for _ in range(2)), lambda model, batch: model(batch).mean()

def no_arguments(): ...
def one_thing(spec, device): return nn.Linear(8, 1)
def no_loss(spec, device): return {"model": nn.Linear(8, 1), "batches": []}
def no_model(spec, device): return "model", [], print
def no_batches(spec, device): return nn.Linear(8, 1), 3, print
number = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_models.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)


@pytest.mark.usefixtures("own")
def test_own_batches_are_dealt_to_ranks_and_start_over() -> None:
    work = workload(WorkloadSpec("own_models:listed", **SMALL), "cpu")
    mine = work.batches(rank=1, world_size=2)
    assert [int(next(mine)[0, 0]) for _ in range(4)] == [1, 0, 2, 1]


@pytest.mark.usefixtures("own")
def test_a_loader_starts_over_and_an_iterator_ends() -> None:
    again = workload(WorkloadSpec("own_models:loader", **SMALL), "cpu").batches()
    assert [int(next(again)) for _ in range(5)] == [0, 1, 2, 0, 1]
    once = workload(WorkloadSpec("own_models:once", **SMALL), "cpu").batches()
    assert [int(next(once)), int(next(once))] == [1, 1]
    with pytest.raises(ValueError, match="batches ended"):
        next(once)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("no_such_module:f", "no_such_module"),
        ("own_models:nothing", "nothing"),
        ("own_models:one_thing", "Linear"),
        ("own_models:no_loss", "loss"),
        ("own_models:no_batches", "iterable"),
    ],
)
def test_own_function_that_does_not_fit_says_how(name: str, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        workload(WorkloadSpec(name, **SMALL), "cpu")


@pytest.mark.parametrize(
    ("name", "library"), [("transformers:llama", "transformers"), ("torchbench:x", "torchbenchmark")]
)
def test_a_library_that_is_missing_is_named(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr("stepscope.lab.bench.workloads.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="not installed"):
        workload(WorkloadSpec(name, **SMALL), "cpu")
