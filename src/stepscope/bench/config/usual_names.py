"""Names that guides use for our settings: `training: {learning_rate: 0.01}` is `train: {lr: 0.01}`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepscope.bench.config.file import ConfigFile
from stepscope.errors import UsageError

_SECTIONS = {"training": "train", "model": "workload"}
# by their place after the section's name is ours; with synthetic data an epoch is one step
_SETTINGS = {
    "train.learning_rate": "train.lr",
    "train.num_epochs": "train.steps",
    "train.epochs": "train.steps",
    "train.max_steps": "train.steps",
    "train.gradient_accumulation_steps": "train.grad_accum",
    "train.accumulation_steps": "train.grad_accum",
    "train.max_grad_norm": "train.clip_norm",
    "train.batch_size": "workload.batch_size",
    "train.seed": "workload.seed",
    "train.warmup_steps": "scheduler.warmup_steps",
    "train.warmup_epochs": "scheduler.warmup_steps",
    "workload.hidden_size": "workload.d_model",
    "workload.n_layers": "workload.num_layers",
    "workload.n_heads": "workload.num_heads",
}


def our_name(dotted: str) -> str:
    """Return a setting's name as it is called here.

    >>> our_name("training.learning_rate"), our_name("model.d_model"), our_name("train.lr")
    ('train.lr', 'workload.d_model', 'train.lr')
    """
    section, dot, name = dotted.partition(".")
    ours = f"{_SECTIONS.get(section, section)}{dot}{name}"
    return _SETTINGS.get(ours, ours)


def with_our_names(source: ConfigFile) -> ConfigFile:
    """Return a configuration with every setting under its name here; one that is given twice is refused."""
    values: dict[str, Any] = {}
    for section, settings in source.values.items():
        if not isinstance(settings, Mapping):
            values[_SECTIONS.get(section, section)] = settings
            continue
        values.setdefault(_SECTIONS.get(section, section), {})
        for name, value in settings.items():
            ours = our_name(f"{section}.{name}")
            place, _, last = ours.partition(".")
            held = values.setdefault(place, {})
            if not isinstance(held, dict):
                raise UsageError(f"{source.where(section)}: {place} has to hold settings, not {held!r}")
            if last in held:
                raise UsageError(f"{source.where(f'{section}.{name}')}: {ours} is given a second time; remove one")
            held[last] = value
    return replace(source, values=values, lines={our_name(name): line for name, line in source.lines.items()})
