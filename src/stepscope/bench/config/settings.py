"""A benchmark or training described in a file, with changes from the command line.

    config = config_from("job.toml", ["train.lr=0.1", "workload.d_model=512"])
    spec = workload_spec(config)

The later wins: defaults, then the file, then `--set` and the plain flags in their order. Every value is checked, and a
wrong one is named with its file and line. Standard library only, so that the command line can read it without torch.
"""

import argparse
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from stepscope.bench.config.field import expectation, no_such, section, without_none
from stepscope.bench.config.file import ConfigFile, read_config
from stepscope.bench.config.sections import BenchConfig, checked_together
from stepscope.bench.config.usual_names import our_name, with_our_names
from stepscope.errors import UsageError

# plain flags of `stepscope bench` (`--d-model` is `d_model`) and the settings they stand for
_FLAGS = {
    "workload": "workload.name",
    "d_model": "workload.d_model",
    "num_layers": "workload.num_layers",
    "num_heads": "workload.num_heads",
    "seq_len": "workload.seq_len",
    "vocab_size": "workload.vocab_size",
    "batch_size": "workload.batch_size",
    "seed": "workload.seed",
    "precision": "train.precision",
    "grad_accum": "train.grad_accum",
    "bucket_size_mb": "train.bucket_size_mb",
    "profile_implementation": "train.strategy",
    "steps": "bench.steps",
    "warmup_steps": "bench.warmup_steps",
    "runs": "bench.runs",
    "world_size": "ranks.world_size",
    "backend": "ranks.backend",
    "threads": "ranks.threads",
    "share_devices": "ranks.share_devices",
    "limit_s": "ranks.limit_s",
}

# plain flags of the trainer; with synthetic data an epoch is one step
_TRAINING_FLAGS = {
    **{flag: dotted for flag, dotted in _FLAGS.items() if dotted.startswith("workload.")},
    **{flag: f"train.{flag}" for flag in ("precision", "grad_accum", "bucket_size_mb")},
    "strategy": "train.strategy",
    "lr": "train.lr",
    "steps": "train.steps",
    "warmup_steps": "scheduler.warmup_steps",
    "out": "output.dir",
}
_ALSO = {"steps": ("num_epochs",), "warmup_steps": ("warmup_epochs",)}

_SECTIONS: dict[str, Any] = get_type_hints(BenchConfig)
_COMMAND_LINE = "command line"


def config_from(file: str | Path | None = None, overrides: Iterable[str] = ()) -> BenchConfig:
    """Return the checked configuration of a file, if any, with `section.name=value` changes."""
    return _built(*_given(file, overrides))


def flags_from(file: str | Path | None = None, overrides: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values of plain flags that a file or changes give, by flag: what a parser takes as its defaults."""
    given, source = _given(file, overrides)
    config = asdict(_built(given, source))
    found = {flag: dotted.partition(".")[::2] for flag, dotted in _FLAGS.items()}
    return {flag: config[part][name] for flag, (part, name) in found.items() if name in given.get(part, {})}


def workload_spec(config: BenchConfig) -> Any:
    """Return the `WorkloadSpec` of a configuration (needs torch)."""
    from stepscope.bench.workloads.workload import WorkloadSpec

    return WorkloadSpec(**asdict(config.workload), precision=config.train.precision)


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Add the plain flags of a training: `--d-model 512` is `--set workload.d_model=512`."""
    for dest, dotted in _TRAINING_FLAGS.items():
        names = [f"--{name.replace('_', '-')}" for name in (dest, *_ALSO.get(dest, ()))]
        parser.add_argument(*names, dest=dest, metavar="X", help=dotted)


def training_overrides(args: argparse.Namespace) -> list[str]:
    """Return the changes that `--set` and the plain flags of a training ask for, flags last."""
    flags = {dotted: getattr(args, dest) for dest, dotted in _TRAINING_FLAGS.items()}
    return [*args.overrides, *(f"{dotted}={value}" for dotted, value in flags.items() if value is not None)]


def settings_table() -> list[tuple[str, str, str, str]]:
    """Return every setting as (name, default, what it may be, meaning), for the manual."""
    rows = []
    for name, kind in _SECTIONS.items():
        defaults, hints = kind(), get_type_hints(kind)
        for field in fields(defaults):
            hint, optional = without_none(hints[field.name])
            default = getattr(defaults, field.name)
            expected = expectation(hint, field.metadata, optional=optional)
            rows.append((f"{name}.{field.name}", _shown(default), expected, field.metadata["doc"]))
    return rows


def _given(file: str | Path | None, overrides: Iterable[str]) -> tuple[dict[str, dict[str, Any]], ConfigFile]:
    source = with_our_names(read_config(file)) if file is not None else ConfigFile(_COMMAND_LINE, {}, {})
    given: dict[str, Any] = {}
    for name, values in source.values.items():
        if name not in _SECTIONS:
            raise UsageError(f"{source.where(name)}: {name}: {no_such(name, list(_SECTIONS))}")
        given[name] = dict(values) if isinstance(values, Mapping) else values
    changed = [_apply(given, text) for text in overrides]
    return given, replace(source, changed=frozenset(changed))


def _apply(given: dict[str, Any], text: str) -> str:
    dotted, sign, written = text.partition("=")
    parts = our_name(dotted.strip()).split(".")
    if not sign or len(parts) < 2 or not all(parts):
        raise UsageError(f"--set {text}: has to be section.name=value, such as train.lr=0.01")
    if parts[0] not in _SECTIONS:
        raise UsageError(f"--set {text}: {parts[0]}: {no_such(parts[0], list(_SECTIONS))}")
    place = given
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UsageError(f"--set {text}: {part} has to hold settings, not {place!r}")
    place[parts[-1]] = _value_of(written.strip())
    return ".".join(parts[:2])


def _value_of(text: str) -> Any:
    """Return a value as TOML would read it; anything else is a text.

    >>> value_of("0.1"), value_of("true"), value_of("[0, 3]"), value_of("fp16")
    (0.1, True, [0, 3], 'fp16')
    """
    try:
        return tomllib.loads(f"v = {text}")["v"] if "\n" not in text else text
    except (ValueError, RecursionError):  # no TOML, thousands of digits, thousands of brackets
        return text


def _built(given: dict[str, Any], source: ConfigFile) -> BenchConfig:
    elsewhere = {field.name: f"{name}.{field.name}" for name, kind in _SECTIONS.items() for field in fields(kind)}
    made = {
        name: section(kind, given.get(name, {}), name=name, where=source.where, elsewhere=elsewhere)
        for name, kind in _SECTIONS.items()
    }
    return checked_together(BenchConfig(**made), source.where)


def _shown(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
