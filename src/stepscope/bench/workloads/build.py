"""A workload from its description.

    spec = WorkloadSpec(name="gpt", d_model=256, batch_size=8)
    work = workload(spec, torch.device("cpu"))
    for batch in work.batches(rank=0, world_size=2):
        work.loss(work.model, batch).backward()

Names: `gpt`, `deepseek`, `mlp`, `transformers:CONFIG`, `torchbench:MODEL`, and `module:function` for one's own.
"""

from importlib import import_module

import torch

from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError

_NAMED = {
    "gpt": "stepscope.bench.workloads.gpt",
    "deepseek": "stepscope.bench.workloads.deepseek",
    "mlp": "stepscope.bench.workloads.mlp",
}
_PREFIXED = {
    "transformers": "stepscope.bench.workloads.transformers_config",
    "torchbench": "stepscope.bench.workloads.torchbench",
}


def workload(spec: WorkloadSpec, device: torch.device | str) -> Workload:
    """Return the workload of a description; weights depend on the seed alone.

    On CUDA devices the process's switch for tf32 products is set as the description wants it.
    """
    where = torch.device(device)
    if where.type == "cuda":
        torch.set_float32_matmul_precision("high" if spec.precision == "tf32" else "highest")
    prefix, _, rest = spec.name.partition(":")
    if spec.name in _NAMED:
        module, argument = _NAMED[spec.name], spec.name
    elif rest and prefix in _PREFIXED:
        module, argument = _PREFIXED[prefix], rest
    elif rest:
        module, argument = "stepscope.bench.workloads.user_defined", spec.name
    else:
        names = ", ".join([*_NAMED, "transformers:CONFIG", "torchbench:MODEL", "module:function"])
        raise UsageError(f"unknown workload {spec.name!r}; use one of {names}")
    torch.manual_seed(spec.seed)
    built: Workload = import_module(module).build(spec, where, argument)
    return built
