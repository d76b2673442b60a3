"""A causal language model of Transformers from its configuration alone: random weights, no dropout, no download.

`transformers:llama` takes the library's default sizes of that model type, overridden by the spec's sizes where
`options["sizes"]` is "spec" (the default); `transformers:path/config.json` takes the file's sizes as they are.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from stepscope.bench.workloads.loader import text_for
from stepscope.bench.workloads.workload import Workload, WorkloadSpec
from stepscope.errors import UsageError
from stepscope.side_file import read_side_json

_SIZES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "num_layers",
    "num_attention_heads": "num_heads",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "seq_len",
}


def _build(spec: WorkloadSpec, device: torch.device, argument: str) -> Workload:
    config = _without_dropout(_config(spec, argument))
    try:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_config(config)
    except (ValueError, KeyError, ImportError) as error:
        raise UsageError(f"{argument!r} is not a causal language model: {_first_line(error)}") from error
    model.config.use_cache = False
    return Workload(
        spec=spec,
        model=model.to(device),
        device=device,
        samples=text_for(spec, vocab_size=int(config.vocab_size)),
        objective=_loss,
    )


def _config(spec: WorkloadSpec, argument: str) -> Any:
    if find_spec("transformers") is None:
        raise UsageError(
            f"workload transformers:{argument} needs Transformers, which is not installed here; install it"
        )
    from transformers import AutoConfig

    try:
        if argument.endswith(".json"):
            given = read_side_json(argument).value
            return AutoConfig.for_model(given.pop("model_type"), **given)
        sizes = {theirs: getattr(spec, ours) for theirs, ours in _SIZES.items()}
        sizes["intermediate_size"] = 4 * spec.d_model
        return AutoConfig.for_model(argument, **(sizes if spec.option("sizes", "spec") == "spec" else {}))
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        what = "neither a config.json with model_type nor a model type such as llama"
        raise UsageError(f"{argument!r} is {what}: {_first_line(error)}") from error


def _without_dropout(config: Any) -> Any:
    for name, value in config.to_dict().items():
        if "drop" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


def _loss(model: nn.Module, batch: Any) -> torch.Tensor:
    tokens, following = batch
    scores = model(input_ids=tokens).logits
    return nn.functional.cross_entropy(scores.float().flatten(0, 1), following.flatten())


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
