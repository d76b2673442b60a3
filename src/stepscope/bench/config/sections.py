"""All settings of the benchmark lab and the trainer, by section. Standard library only.

Sections that belong to one piece of code are next to it: `scheduler` in `schedule`, `optimizer` in
`optimizer`. What one setting alone cannot show, `checked_together` looks at.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from stepscope.bench.config.field import setting
from stepscope.bench.config.optimizer import OptimizerConfig
from stepscope.bench.config.schedule import SchedulerConfig
from stepscope.bench.data_parallel.strategies import NAMES, SHARDED
from stepscope.contract.flops import DEFAULT_WORKLOAD, TRAINING_PRECISIONS, WORKLOAD_DEFAULTS
from stepscope.errors import UsageError

# the strategy of one process without a process group
SINGLE = "single"


@dataclass(frozen=True)
class WorkloadConfig:
    """What is trained; the fields are those of `WorkloadSpec`, which also holds the precision."""

    name: str = setting(
        DEFAULT_WORKLOAD, "gpt, deepseek, mlp, transformers:CONFIG, torchbench:MODEL or module:function"
    )
    d_model: int = setting(WORKLOAD_DEFAULTS["d_model"], "width", least=1)
    num_layers: int = setting(WORKLOAD_DEFAULTS["num_layers"], "layers", least=1)
    num_heads: int = setting(WORKLOAD_DEFAULTS["num_heads"], "attention heads", least=1)
    seq_len: int = setting(WORKLOAD_DEFAULTS["seq_len"], "tokens per sample", least=1)
    vocab_size: int = setting(WORKLOAD_DEFAULTS["vocab_size"], "different tokens", least=1)
    batch_size: int = setting(WORKLOAD_DEFAULTS["batch_size"], "samples of one rank in one forward", least=1)
    seed: int = setting(0, "of weights and data")
    options: dict[str, Any] = field(default_factory=dict, metadata={"doc": "what only some workloads know"})


@dataclass(frozen=True)
class TrainConfig:
    """How it is trained."""

    strategy: str = setting("pytorch_ddp", "data-parallel implementation", choices=(SINGLE, *NAMES))
    precision: str = setting("fp32", "of matrix products", choices=TRAINING_PRECISIONS)
    steps: int = setting(100, "optimizer steps of a training", least=1)
    lr: float = setting(1e-3, "peak learning rate", above=0)
    grad_accum: int = setting(1, "micro-batches per optimizer step", least=1)
    clip_norm: float | None = setting(1.0, "gradients are clipped to this norm; none: never", above=0)
    clip: str = setting("warmup", "in which steps", choices=("warmup", "always"))
    bucket_size_mb: float = setting(25.0, "of strategies with buckets", above=0)
    gradient_as_bucket_view: bool = setting(False, "of pytorch_ddp and zero1")
    static_graph: bool = setting(False, "of pytorch_ddp and zero1")
    find_unused_parameters: bool = setting(False, "of pytorch_ddp and zero1")
    log_every: int = setting(10, "steps between log lines", least=1)
    checkpoint_every: int | None = setting(None, "steps between checkpoints; none: no checkpoints", least=1)


@dataclass(frozen=True)
class BenchMethod:
    """How often a benchmark measures."""

    warmup_steps: int = setting(10, "steps that are not measured", least=1)
    steps: int = setting(50, "measured steps", least=1)
    runs: int = setting(3, "interleaved repetitions", least=1)


@dataclass(frozen=True)
class RanksConfig:
    """Which ranks a benchmark starts."""

    world_size: int = setting(2, "ranks", least=1)
    backend: str = setting("gloo", "of the process group", choices=("gloo", "nccl"))
    threads: int = setting(1, "of one rank", least=1)
    share_devices: bool = setting(False, "let NCCL ranks share a device")
    limit_s: float = setting(3600.0, "give up after", above=0)


@dataclass(frozen=True)
class ProfileConfig:
    """The recorded window, as in `stepscope.profile`."""

    wait: int = setting(8, "steps before it", least=0)
    warmup: int = setting(2, "steps in which the profiler warms up", least=0)
    active: int = setting(5, "recorded steps", least=1)
    repeat: int = setting(1, "windows", least=1)
    record_shapes: bool = setting(False, "of operators")
    profile_memory: bool = setting(False, "allocations")
    with_stack: bool = setting(False, "Python stacks")
    ranks: tuple[int, ...] | None = setting(None, "whose window is recorded; none: all", least=0)


@dataclass(frozen=True)
class OutputConfig:
    """What is written."""

    dir: str = setting("stepscope-train", "folder of a training")
    tensorboard: bool = setting(True, "write TensorBoard logs")


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


def checked_together(config: BenchConfig, where: Callable[[str], str]) -> BenchConfig:
    """Return the configuration, after looking at settings that must fit each other."""
    train, scheduler = config.train, config.scheduler
    if scheduler.decay != "constant" and scheduler.warmup_steps >= config.total_steps:
        raise UsageError(
            f"{where('scheduler.warmup_steps')}: scheduler.warmup_steps has to be below the {config.total_steps} total "
            f"steps, not {scheduler.warmup_steps}; with decay {scheduler.decay} nothing is left to decay"
        )
    if train.precision == "fp16" and train.strategy in SHARDED:
        raise UsageError(
            f"{where('train.precision')}: train.precision has to be fp32, tf32 or bf16 with strategy {train.strategy}, "
            "whose shards share no loss scale, not 'fp16'"
        )
    _refuse_what_it_cannot(train, where)
    if scheduler.final_ratio > 1:
        raise UsageError(
            f"{where('scheduler.final_ratio')}: scheduler.final_ratio has to be from 0 to 1, "
            f"not {scheduler.final_ratio:g}"
        )
    return config


def _refuse_what_it_cannot(train: TrainConfig, where: Callable[[str], str]) -> None:
    engine = train.strategy.startswith("deepspeed")
    if engine and train.clip_norm is not None:
        raise UsageError(
            f"{where('train.clip_norm')}: train.clip_norm has to be none with strategy {train.strategy}, whose engine "
            f"owns the gradients, not {train.clip_norm:g}"
        )
    if train.checkpoint_every and (engine or train.strategy == "zero1"):
        raise UsageError(
            f"{where('train.checkpoint_every')}: train.checkpoint_every has to be none with strategy "
            f"{train.strategy}, whose state is in pieces of its own, not {train.checkpoint_every}"
        )
