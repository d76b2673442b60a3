"""Settings of benchmarks and trainings: dataclasses, read from TOML or YAML, changed on the command line.

    config = config_from("job.toml", ["train.lr=0.1", "workload.d_model=512"])

The later wins: defaults, then the file, then `--set` and the plain flags in their order. Every value is checked, and a
wrong one is named with its file and line. Standard library only: the command line reads configurations without torch.
"""

import argparse
import difflib
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from stepscope.contract.operations import DEFAULT_WORKLOAD, TRAINING_PRECISIONS, WORKLOAD_DEFAULTS
from stepscope.errors import InputError, UsageError
from stepscope.lab.bench.strategies import DDP_OPTIONS, NAMES, SHARDED
from stepscope.side_file import read_side_text

SINGLE = "single"  # the strategy of one process without a process group
_MAX_BYTES, _MAX_VALUES = 1 << 20, 100_000

Where = Callable[[str], str]


def _setting(
    default: Any, doc: str, *, least: float | None = None, above: float | None = None, choices: tuple[str, ...] = ()
) -> Any:
    limits = {"doc": doc, "least": least, "above": above, "choices": choices}
    given: dict[str, Any] = {"default_factory": default} if default is dict else {"default": default}
    return field(**given, metadata=limits)


@dataclass(frozen=True)
class WorkloadConfig:
    """What is trained."""

    name: str = _setting(
        DEFAULT_WORKLOAD, "gpt, deepseek, mlp, transformers:CONFIG, torchbench:MODEL or module:function"
    )
    d_model: int = _setting(WORKLOAD_DEFAULTS["d_model"], "width", least=1)
    num_layers: int = _setting(WORKLOAD_DEFAULTS["num_layers"], "layers", least=1)
    num_heads: int = _setting(WORKLOAD_DEFAULTS["num_heads"], "attention heads", least=1)
    seq_len: int = _setting(WORKLOAD_DEFAULTS["seq_len"], "tokens per sample", least=1)
    vocab_size: int = _setting(WORKLOAD_DEFAULTS["vocab_size"], "different tokens", least=1)
    batch_size: int = _setting(WORKLOAD_DEFAULTS["batch_size"], "samples of one rank in one forward", least=1)
    seed: int = _setting(0, "of weights and data")
    options: dict[str, Any] = _setting(dict, "what only some workloads know")  # noqa: RUF009


@dataclass(frozen=True)
class WorkloadSpec(WorkloadConfig):
    """The description of a workload, plain enough for JSON."""

    precision: str = _setting("fp32", "of matrix products", choices=TRAINING_PRECISIONS)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for known in fields(self):
            _fitting(getattr(self, known.name), hints[known.name], known.metadata, known.name)

    def option(self, name: str, default: Any) -> Any:
        """Return one option, or its default."""
        return self.options.get(name, default)


@dataclass(frozen=True)
class TrainConfig:
    """How it is trained."""

    strategy: str = _setting("pytorch_ddp", "data-parallel implementation", choices=(SINGLE, *NAMES))
    precision: str = _setting("fp32", "of matrix products", choices=TRAINING_PRECISIONS)
    steps: int = _setting(100, "optimizer steps of a training", least=1)
    lr: float = _setting(1e-3, "peak learning rate", above=0)
    grad_accum: int = _setting(1, "micro-batches per optimizer step", least=1)
    clip_norm: float | None = _setting(1.0, "gradients are clipped to this norm; none: never", above=0)
    clip: str = _setting("warmup", "in which steps", choices=("warmup", "always"))
    bucket_size_mb: float = _setting(25.0, "of strategies with buckets", above=0)
    gradient_as_bucket_view: bool = _setting(False, "of pytorch_ddp and zero1")
    static_graph: bool = _setting(False, "of pytorch_ddp and zero1")
    find_unused_parameters: bool = _setting(False, "of pytorch_ddp and zero1")
    log_every: int = _setting(10, "steps between log lines", least=1)
    checkpoint_every: int | None = _setting(None, "steps between checkpoints; none: no checkpoints", least=1)


@dataclass(frozen=True)
class SchedulerConfig:
    """How the learning rate moves over the steps."""

    warmup_steps: int = _setting(10, "steps in which the rate rises linearly from 0 to train.lr", least=0)
    decay: str = _setting("constant", "what the rate does after the warm-up", choices=("constant", "linear", "cosine"))
    total_steps: int | None = _setting(None, "step at which the decay ends; none: train.steps", least=1)
    final_ratio: float = _setting(0.0, "share of train.lr that is left at total_steps", least=0)


@dataclass(frozen=True)
class OptimizerConfig:
    """What steps the parameters; the learning rate is `train.lr` and `scheduler`."""

    name: str = _setting("adamw", "adamw, adam or sgd", choices=("adamw", "adam", "sgd"))
    weight_decay: float = _setting(0.01, "decay of the weights", least=0)
    betas: tuple[float, float] = _setting((0.9, 0.999), "of adam and adamw", least=0)
    momentum: float = _setting(0.0, "of sgd", least=0)
    fused: bool = _setting(False, "one kernel for all parameters, where the device has it")


@dataclass(frozen=True)
class BenchMethod:
    """How often a benchmark measures."""

    warmup_steps: int = _setting(10, "steps that are not measured", least=1)
    steps: int = _setting(50, "measured steps", least=1)
    runs: int = _setting(3, "interleaved repetitions", least=1)


@dataclass(frozen=True)
class RanksConfig:
    """Which ranks a benchmark starts."""

    world_size: int = _setting(2, "ranks", least=1)
    backend: str = _setting("gloo", "of the process group", choices=("gloo", "nccl"))
    threads: int = _setting(1, "of one rank", least=1)
    share_devices: bool = _setting(False, "let NCCL ranks share a device")
    limit_s: float = _setting(3600.0, "give up after", above=0)


@dataclass(frozen=True)
class ProfileConfig:
    """The recorded window, as in `stepscope.profile`."""

    wait: int = _setting(8, "steps before it", least=0)
    warmup: int = _setting(2, "steps in which the profiler warms up", least=0)
    active: int = _setting(5, "recorded steps", least=1)
    repeat: int = _setting(1, "windows", least=1)
    record_shapes: bool = _setting(False, "of operators")
    profile_memory: bool = _setting(False, "allocations")
    with_stack: bool = _setting(False, "Python stacks")
    ranks: tuple[int, ...] | None = _setting(None, "whose window is recorded; none: all", least=0)


@dataclass(frozen=True)
class OutputConfig:
    """What is written."""

    dir: str = _setting("stepscope-train", "folder of a training")
    tensorboard: bool = _setting(True, "write TensorBoard logs")


@dataclass(frozen=True)
class BenchConfig:
    """Everything, in sections."""

    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    bench: BenchMethod = field(default_factory=BenchMethod)
    ranks: RanksConfig = field(default_factory=RanksConfig)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    output: OutputConfig = field(default_factory=OutputConfig)

    @property
    def total_steps(self) -> int:
        """Return the step at which the learning rate has decayed."""
        return self.scheduler.total_steps or self.train.steps

    @property
    def workload_spec(self) -> WorkloadSpec:
        """Return the workload with its precision."""
        return WorkloadSpec(**vars(self.workload), precision=self.train.precision)


SECTIONS: dict[str, Any] = typing.get_type_hints(BenchConfig)

# plain flags of `stepscope bench` (`--d-model` is `d_model`) and the settings they stand for
_FLAGS = {
    "workload": "workload.name",
    **{name: f"workload.{name}" for name in (*WORKLOAD_DEFAULTS, "seed")},
    **{name: f"train.{name}" for name in ("precision", "grad_accum", "bucket_size_mb")},
    "profile_implementation": "train.strategy",
    **{name: f"bench.{name}" for name in ("steps", "warmup_steps", "runs")},
    **{name: f"ranks.{name}" for name in ("world_size", "backend", "threads", "share_devices", "limit_s")},
}

_TRAINING_FLAGS = {
    **{flag: dotted for flag, dotted in _FLAGS.items() if dotted.startswith("workload.")},
    **{flag: f"train.{flag}" for flag in ("precision", "grad_accum", "bucket_size_mb", "strategy", "lr", "steps")},
    "warmup_steps": "scheduler.warmup_steps",
    "out": "output.dir",
}
_ALSO = {"steps": ("--num-epochs",), "warmup_steps": ("--warmup-epochs",)}  # with synthetic data an epoch is one step

# Names that guides use for our settings: `training: {learning_rate: 0.01}` is `train: {lr: 0.01}`.
_USUAL_SECTIONS = {"training": "train", "model": "workload"}
_USUAL_NAMES = {
    "train.scheduler": "scheduler",
    "train.optimizer": "optimizer",
    "train.lr_scheduler": "scheduler",
    "scheduler.type": "scheduler.decay",
    "optimizer.type": "optimizer.name",
    "train.mixed_precision": "train.precision",
    "fsdp.sharding_strategy": "train.strategy",
    "fsdp.use_mixed_precision": "train.precision",
    "fsdp.mixed_precision": "train.precision",
    "ddp.bucket_cap_mb": "train.bucket_size_mb",
    **{f"ddp.{name}": f"train.{name}" for name in DDP_OPTIONS},
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
# Their values, by our setting. FSDP2's bf16 needs no loss scale.
_USUAL_VALUES: dict[str, dict[Any, Any]] = {
    "train.strategy": {
        "fsdp": "fsdp2_zero3", "FULL_SHARD": "fsdp2_zero3", "SHARD_GRAD_OP": "fsdp2_zero2", "NO_SHARD": "pytorch_ddp",
    },
    "train.precision": {True: "bf16", False: "fp32", "no": "fp32"},
    "scheduler.decay": {"constant_with_warmup": "constant", "cosine_with_warmup": "cosine"},
}  # fmt: skip
# sections of guides that choose a strategy, whose settings apply where `train` has none
_STRATEGY_SECTIONS = {"fsdp": "fsdp", "ddp": "pytorch_ddp"}
_ALWAYS_ON = ("fsdp.use_orig_params",)  # FSDP2 has no other way


def config_from(file: str | Path | None = None, overrides: Iterable[str] = ()) -> BenchConfig:
    """Return the checked configuration of a file, if any, with `section.name=value` changes."""
    return _load(file, overrides)[0]


def _flags_from(file: str | Path | None = None, overrides: Iterable[str] = ()) -> dict[str, Any]:
    config, given = _load(file, overrides)
    found = {flag: dotted.split(".") for flag, dotted in _FLAGS.items()}
    return {flag: getattr(getattr(config, s), n) for flag, (s, n) in found.items() if n in given.get(s, {})}


def learning_rate(
    step: int, *, peak: float, warmup_steps: int, decay: str = "constant", total_steps: int = 0,
    final_ratio: float = 0.0,
) -> float:  # fmt: skip
    """Return the rate of a step, counted from 0: linear warm-up, then constant or down to final_ratio at total_steps.

    >>> [learning_rate(s, peak=1.0, warmup_steps=2, decay="linear", total_steps=6) for s in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """
    if step < warmup_steps:
        return peak * step / warmup_steps
    if decay == "constant":
        return peak
    way = min(1.0, (step - warmup_steps) / max(total_steps - warmup_steps, 1))
    left = 1.0 - way if decay == "linear" else (1.0 + math.cos(math.pi * way)) / 2
    return peak * (final_ratio + (1.0 - final_ratio) * left)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE` and `--set section.name=value`."""
    parser.add_argument("--config", metavar="FILE", help="settings in TOML or YAML; flags change them")
    parser.add_argument(
        "--set", metavar="KEY=VALUE", dest="overrides", action="append", default=[],
        help="change one setting, such as train.lr=0.01; may be repeated",
    )  # fmt: skip


def add_training_flags(parser: argparse.ArgumentParser) -> None:
    """Add the plain flags of a training: `--d-model 512` is `--set workload.d_model=512`."""
    for dest, dotted in _TRAINING_FLAGS.items():
        parser.add_argument(f"--{dest.replace('_', '-')}", *_ALSO.get(dest, ()), dest=dest, metavar="X", help=dotted)


def training_overrides(args: argparse.Namespace) -> list[str]:
    """Return the changes of `--set` and of the plain flags of a training, flags last."""
    flags = {dotted: getattr(args, dest) for dest, dotted in _TRAINING_FLAGS.items()}
    return [*args.overrides, *(f"{dotted}={value}" for dotted, value in flags.items() if value is not None)]


class ConfiguredParser(argparse.ArgumentParser):
    """Takes the defaults of its plain flags from `--config` and `--set`; `workload_options` come with them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        add_config_arguments(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return what argparse returns, with the configuration read first: flags win in any position."""
        first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        first.error = self.error  # type: ignore[method-assign]
        add_config_arguments(first)
        given, _ = first.parse_known_args(args)
        if given.config is not None or given.overrides:
            known = {action.dest for action in self._actions}
            flags = _flags_from(given.config, given.overrides)
            self.set_defaults(
                **{flag: value for flag, value in flags.items() if flag in known},
                workload_options=config_from(given.config, given.overrides).workload.options,
            )
        return super().parse_known_args(args, namespace)


def _load(file: str | Path | None, overrides: Iterable[str]) -> tuple[BenchConfig, dict[str, dict[str, Any]]]:
    values, lines = read_config(file) if file is not None else ({}, {})
    changed: set[str] = set()

    def where(dotted: str) -> str:
        line = lines.get(dotted)
        return "--set" if dotted in changed else f"{file or 'command line'}{f', line {line}' if line else ''}"

    given = _by_section(values, where)
    for text in overrides:
        changed.add(_apply(given, text))
    _use_our_values(given)
    elsewhere = {known.name: f"{name}.{known.name}" for name, kind in SECTIONS.items() for known in fields(kind)}
    sections = {name: _section(kind, given.get(name, {}), name, where, elsewhere) for name, kind in SECTIONS.items()}
    config = BenchConfig(**sections)
    _check_together(config, where)
    return config, given


def _our_name(dotted: str) -> str:
    section, dot, rest = dotted.partition(".")
    name, more, below = rest.partition(".")
    ours = f"{_USUAL_SECTIONS.get(section, section)}{dot}{name}"
    ours = _USUAL_NAMES.get(ours, ours)
    return _our_name(f"{ours}.{below}") if more and "." not in ours else f"{ours}{more}{below}"


def _by_section(values: Mapping[str, Any], where: Where) -> dict[str, dict[str, Any]]:
    given: dict[str, dict[str, Any]] = {}
    implied: dict[str, Any] = {}
    for section, settings in values.items():
        ours = _our_name(section)
        if ours not in SECTIONS and ours not in _STRATEGY_SECTIONS:
            raise UsageError(f"{where(ours)}: {ours}: {_no_such(ours, SECTIONS)}")
        if not isinstance(settings, Mapping):
            raise UsageError(f"{where(ours)}: {ours} has to hold settings by name, not {settings!r}")
        into = None if ours in SECTIONS else implied
        for dotted, value in _settings(section, settings):
            _add(given, dotted, value, where, implied=into)
        if into is not None and not ("fsdp" in values and "ddp" in values):
            implied.setdefault("train.strategy", _STRATEGY_SECTIONS[ours])
    for dotted, value in implied.items():
        place, _, name = dotted.partition(".")
        mine = given.setdefault(place, {})
        if mine.get(name, "fsdp") == "fsdp":  # not given, or not how it shards
            mine[name] = value
    return given


def _settings(section: str, settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        dotted = _our_name(f"{section}.{name}")
        if dotted in SECTIONS and isinstance(value, Mapping):
            yield from _settings(dotted, value)
        elif dotted not in _ALWAYS_ON:
            yield dotted, value


def _add(
    given: dict[str, dict[str, Any]], dotted: str, value: Any, where: Where, *, implied: dict[str, Any] | None
) -> None:
    place, _, name = dotted.partition(".")
    if place not in SECTIONS:
        known = [theirs.partition(".")[2] for theirs in (*_USUAL_NAMES, *_ALWAYS_ON) if theirs.startswith(f"{place}.")]
        raise UsageError(f"{where(dotted)}: {dotted}: {_no_such(name, known)}")
    mine, key = (given.setdefault(place, {}), name) if implied is None else (implied, dotted)
    if key in mine:
        raise UsageError(f"{where(dotted)}: {dotted} is given a second time; remove one")
    mine[key] = value


def _use_our_values(given: dict[str, dict[str, Any]]) -> None:
    for dotted, ours in _USUAL_VALUES.items():
        section, _, name = dotted.partition(".")
        value = given.get(section, {}).get(name)
        if isinstance(value, str | bool) and value in ours:
            given[section][name] = ours[value]
    scheduler = given.get("scheduler", {})
    if scheduler.get("decay") == "linear_warmup":  # and then down to the step at which it ends, where one is given
        scheduler["decay"] = "linear" if scheduler.get("total_steps") else "constant"


def _apply(given: dict[str, Any], text: str) -> str:
    dotted, sign, written = text.partition("=")
    parts = _our_name(dotted.strip()).split(".")
    if not sign or len(parts) < 2 or not all(parts):
        raise UsageError(f"--set {text}: has to be section.name=value, such as train.lr=0.01")
    if parts[0] not in SECTIONS:
        raise UsageError(f"--set {text}: {parts[0]}: {_no_such(parts[0], SECTIONS)}")
    place = given
    for part in parts[:-1]:
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise UsageError(f"--set {text}: {part} has to hold settings, not {place!r}")
    try:
        place[parts[-1]] = tomllib.loads(f"v = {written.strip()}")["v"]
    except (ValueError, RecursionError):  # a text, thousands of digits, thousands of brackets
        place[parts[-1]] = written.strip()
    return ".".join(parts[:2])


def _section(kind: Any, values: Mapping[str, Any], name: str, where: Where, elsewhere: Mapping[str, str]) -> Any:
    known, hints, made = {f.name: f for f in fields(kind)}, typing.get_type_hints(kind), {}
    for key, value in values.items():
        dotted = f"{name}.{key}"
        if key not in known:
            meant = f"no such setting, did you mean {elsewhere[key]}?" if key in elsewhere else _no_such(key, known)
            raise UsageError(f"{where(dotted)}: {dotted}: {meant}")
        made[key] = _fitting(value, hints[key], known[key].metadata, f"{where(dotted)}: {dotted}")
    return kind(**made)


def _no_such(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"no such setting{f', did you mean {near[0]}?' if near else ';'} known: {', '.join(known)}"


def _fitting(value: Any, hint: Any, limits: Mapping[str, Any], who: str) -> Any:
    hint, optional = _without_none(hint)
    if optional and (value is None or (isinstance(value, str) and value.lower() in ("none", "null"))):
        return None
    made = _converted(value, hint)
    parts = made if isinstance(made, tuple) else (made,)
    if (
        None in parts
        or (limits["choices"] and made not in limits["choices"])
        or (limits["least"] is not None and min(parts) < limits["least"])
        or (limits["above"] is not None and min(parts) <= limits["above"])
    ):
        raise UsageError(f"{who} has to be {expectation(hint, limits, optional=optional)}, not {value!r}")
    return made


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return hint, False
    return next(part for part in typing.get_args(hint) if part is not type(None)), True


def expectation(hint: Any, limits: Mapping[str, Any], *, optional: bool | None = None) -> str:
    """Return the valid values of a setting in words: "a whole number of at least 1", "one of fp32, bf16"."""
    if optional is None:
        hint, optional = _without_none(hint)
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}.get(hint)
    if typing.get_origin(hint) is tuple:
        kinds = typing.get_args(hint)
        words = "a list of numbers" if Ellipsis in kinds else f"a list of {len(kinds)} numbers"
    if limits["choices"]:
        words = f"one of {', '.join(limits['choices'])}"
    least = "" if limits["least"] is None else f" of at least {limits['least']:g}"
    above = "" if limits["above"] is None else f" above {limits['above']:g}"
    return f"{words or 'settings by name'}{least}{above}{', or none' if optional else ''}"


def _converted(value: Any, hint: Any) -> Any:
    kind = typing.get_origin(hint) or hint
    if kind is tuple and isinstance(value, list | tuple):
        kinds = typing.get_args(hint)
        return tuple(_converted(v, kinds[0]) for v in value) if len(value) == len(kinds) or ... in kinds else None
    if kind is not float:
        return value if isinstance(value, kind) and not (kind is int and isinstance(value, bool)) else None
    try:
        number = float("nan" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _check_together(config: BenchConfig, where: Where) -> None:
    train, scheduler = config.train, config.scheduler
    engine, owner = train.strategy.startswith("deepspeed"), f"with strategy {train.strategy}, whose"
    rules = {
        "scheduler.warmup_steps": scheduler.decay != "constant" and scheduler.warmup_steps >= config.total_steps
        and f"below the {config.total_steps} total steps, not {scheduler.warmup_steps}; "
        f"with decay {scheduler.decay} nothing is left to decay",
        "scheduler.final_ratio": scheduler.final_ratio > 1 and f"from 0 to 1, not {scheduler.final_ratio:g}",
        "train.precision": train.precision == "fp16" and train.strategy in SHARDED
        and f"fp32, tf32 or bf16 {owner} shards share no loss scale, not 'fp16'",
        "train.clip_norm": engine and train.clip_norm is not None
        and f"none {owner} engine owns the gradients, not {train.clip_norm:g}",
        "train.checkpoint_every": (engine or train.strategy == "zero1") and train.checkpoint_every
        and f"none {owner} state is split into separate files, not {train.checkpoint_every}",
    }  # fmt: skip
    for dotted, expected in rules.items():
        if expected:
            raise UsageError(f"{where(dotted)}: {dotted} has to be {expected}")


def read_config(path: str | Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the settings of a TOML or YAML file, and the line of each by its dotted name."""
    file = Path(path)
    reader = {".toml": _toml, ".yaml": _yaml, ".yml": _yaml}.get(file.suffix.lower())
    if reader is None:
        raise UsageError(f"{path}: a configuration is named *.toml, *.yaml or *.yml, not {file.name!r}")
    try:
        text = read_side_text(file, max_bytes=_MAX_BYTES)
    except (OSError, UnicodeDecodeError) as e:
        reason = e.strerror if isinstance(e, OSError) else "not UTF-8 text"
        raise InputError(f"{path}: cannot be read as a configuration: {reason}") from e
    try:
        values, lines = reader(text, str(path))
        if not isinstance(values, dict):
            raise InputError(f"{path}: has to hold sections such as train and workload, not {values!r}")
        _check_names(values, str(path), [0])
    except RecursionError as e:
        raise InputError(f"{path}: its values are nested too deeply; write it flatter") from e
    return values, {_our_name(name): line for name, line in lines.items()}


def _check_names(value: Any, path: str, count: list[int]) -> None:
    count[0] += 1
    if count[0] > _MAX_VALUES:
        raise InputError(f"{path}: its aliases multiply to more than {_MAX_VALUES:,} values; write them out")
    for name in value if isinstance(value, dict) else ():
        if not isinstance(name, str):
            raise InputError(f"{path}: {name!r} is no name of a setting; put it in quotes, or correct it")
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_names(below, path, count)


def _toml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        values = tomllib.loads(text)
    except ValueError as e:  # also a number of thousands of digits
        raise InputError(f"{path}: is not TOML: {e}") from e
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w.\-\s]+?)\s*\]", line):
            table = re.sub(r"\s", "", header.group(1))
            lines.setdefault(table, number)
        elif key := re.match(r"\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=", line):
            name = re.sub(r"\s", "", key.group(1))
            lines.setdefault(f"{table}.{name}" if table else name, number)
    return values, lines


def _yaml(text: str, path: str) -> tuple[Any, dict[str, int]]:
    try:
        yaml = import_module("yaml")
    except ImportError as e:
        raise UsageError(
            f"{path}: reading YAML needs PyYAML: pip install 'stepscope[yaml]', or write it as TOML"
        ) from e
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as e:  # also numbers and dates that are none
        raise InputError(f"{path}: is not YAML: {' '.join(str(e).split())}") from e
    return ({} if values is None else values), dict(_yaml_lines(root, ""))


def _yaml_lines(node: Any, above: str) -> Iterator[tuple[str, int]]:
    for key, below in node.value if getattr(node, "id", "") == "mapping" and above.count(".") < 3 else ():
        yield f"{above}{key.value}", key.start_mark.line + 1
        yield from _yaml_lines(below, f"{above}{key.value}.")
