"""Every setting of a recording, in one frozen record that reaches all processes of a job as one variable.

The launcher writes it with `to_env()`; every process of the job reads the same text with `from_env()`.
Because the window is a function of these settings and the step number alone, all ranks open and close it
together without exchanging a word.
"""

import json
import os
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple, cast

from stepscope.contract.live import MAX_ASKED_STEPS
from stepscope.errors import UsageError

_VARIABLE = "STEPSCOPE_RECORD"
_DEFAULT_OUT = "stepscope-run"

WARMUP_STEPS = 2
WAIT_STEPS = 8


@dataclass(frozen=True)
class RecordConfig:
    """How a job is recorded; the defaults are those of `stepscope record`."""

    out: str = _DEFAULT_OUT
    command: tuple[str, ...] = ()
    run_id: str | None = None  # set by a launcher; a fallback where ranks share no store
    launched_ns: int | None = None  # when `stepscope record` started the job, epoch time

    # The window: (wait + warmup + active) * repeat steps. wait steps are timed without the profiler.
    wait: int = WAIT_STEPS
    warmup: int = WARMUP_STEPS
    active: int = 5
    repeat: int = 1
    step_of: str | None = None  # what one step is, as `hooks.step_unit` reads it; None: automatic
    light: bool = False  # step log only, no profiler at all
    ranks: tuple[int, ...] | None = None  # ranks whose window is profiled; None: all. Step logs come from all.
    tool: str = "torch"  # who records the window: "torch" (Kineto) or "cuda" (a range for nsys or ncu)

    # A tool that each chosen rank runs under; `tool` is then "cuda". Its outputs are in a separate folder at first.
    outside_tool: str | None = None  # "nsys" or "ncu"
    outside_folder: str | None = None
    kernels: str = "regex:^(?!nccl)"  # which ncu runs again and again: never a collective's, alone
    launches: int = 20  # how many of them

    activities: tuple[str, ...] | None = None  # ("cpu", "cuda"); None: what this torch supports
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    count_flops: bool = True  # one step outside the window is observed with shapes to count its FLOPs
    owners: bool = True  # one more step outside the window is observed with Python frames: whose line each operator is
    graphs: bool = False  # captures of CUDA graphs are watched with frames, and compiled kernels keep their lines
    source: bool = True  # store the text of the user's files that occur in them

    # Budgets: whichever is met first ends the window early; the trace keeps what was recorded.
    max_events: int = 500_000
    max_seconds: float = 120.0
    max_memory_mb: int = 2_000

    # What is sampled during the steps.
    memory: bool = False
    memory_history: bool = False
    telemetry: bool = True
    samples: bool = True  # stacks of all Python threads, at moments spread over the run
    collectives: bool = True
    nccl_log: bool = False
    debug: tuple[str, ...] = ()  # debug switches of torch and NCCL, by their names in `nccl_log`
    nvtx: bool = True  # where CUDA is

    # What the helper process exports while the job runs.
    metrics: str | None = None  # [HOST:]PORT of the Prometheus endpoint of local rank 0; the others' follow
    asked_pause_s: float = 30.0  # from the end of a requested window to the next one
    watch_stalls: bool = True
    on_alarm: int | None = None  # steps of the window that an alarm triggers; None: it triggers none
    alarm_pause_s: float = 300.0  # from one such window to the next
    max_alarm_windows: int = 5  # of a job

    # A trial of `stepscope tune`: what is set in the job from outside (see `trial`), and after how many steps it ends.
    settings: dict[str, Any] = field(default_factory=dict)
    trial_steps: int | None = None
    only_set: bool = False  # nothing is recorded
    turn_address: str | None = None  # of the controller, where this job runs in turn with another one; see `turns`

    # How long anything of ours may take once training is over.
    close_wait_s: float = 30.0  # for this rank's own files
    others_grace_s: float = 5.0  # then for run.json, which needs the other ranks
    other_ranks_wait_s: float = 60.0  # how long rank 0's helper waits for them, alone
    write_timeout_s: float = 600.0
    scratch: str | None = None  # folder of the plain trace before it is compressed; None: local temporary folder

    def __post_init__(self) -> None:
        for name, least in (
            ("wait", 0),
            ("warmup", 0),
            ("active", 1),
            ("repeat", 1),
            ("max_events", 1),
            ("launches", 1),
        ):
            if getattr(self, name) < least:
                raise UsageError(f"{name} has to be a whole number of at least {least}, not {getattr(self, name)}")
        if self.on_alarm is not None and not 1 <= self.on_alarm <= MAX_ASKED_STEPS:
            raise UsageError(f"on_alarm has to be a number of steps up to {MAX_ASKED_STEPS:,}, not {self.on_alarm}")
        if self.outside_tool not in (None, "nsys", "ncu"):
            raise UsageError(f"outside_tool has to be 'nsys' or 'ncu', not {self.outside_tool!r}")
        if self.tool not in ("torch", "cuda"):
            raise UsageError(f"tool has to be 'torch' or 'cuda', not {self.tool!r}")

    def with_steps(self, first: int, last: int) -> "RecordConfig":
        """Return the same settings with the window on steps `first` to `last - 1`, counted from 0."""
        if not 0 <= first < last:
            raise UsageError(f"--steps {first}:{last}: the first step has to come before the last, which is left out")
        warmup = min(WARMUP_STEPS, first)
        return replace(self, wait=first - warmup, warmup=warmup, active=last - first, repeat=1)

    def to_env(self) -> dict[str, str]:
        """Return the one environment variable that carries these settings into a job."""
        return {_VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "RecordConfig | None":
        """Return the settings found in the environment, or None where no recording is requested.

        Names this version does not know are left out, so that a launcher may be newer than the job's copy.
        """
        text = (os.environ if environ is None else environ).get(_VARIABLE)
        if not text:
            return None
        try:
            found = json.loads(text)
            known = {f.name for f in fields(cls)}
            values: dict[str, Any] = {name: value for name, value in found.items() if name in known}
            return cls(**{name: cast(Any, tuple(v) if isinstance(v, list) else v) for name, v in values.items()})
        except (ValueError, TypeError, AttributeError) as e:
            raise UsageError(f"{_VARIABLE} holds {text[:80]!r}, which `stepscope record` does not set; unset it") from e


def default_out(environ: Mapping[str, str] | None = None) -> str:
    """Return the output folder: `TORCH_TRACE_DIR` where it is set, else `./stepscope-run`."""
    return (os.environ if environ is None else environ).get("TORCH_TRACE_DIR") or _DEFAULT_OUT


def ranks_from(text: "str | int | list[int] | tuple[int, ...] | None") -> tuple[int, ...] | None:
    """Return the chosen ranks: None for "all", else a sorted tuple, from "0,3", a number or a list."""
    if text is None or text == "all":
        return None
    try:
        parts = text.split(",") if isinstance(text, str) else [text] if isinstance(text, int) else text
        chosen = sorted({int(part) for part in parts})
    except (ValueError, TypeError) as e:
        raise UsageError(f"ranks have to be 'all' or numbers such as 0,3, not {text!r}") from e
    if not chosen or chosen[0] < 0:
        raise UsageError(f"ranks have to be 'all' or numbers such as 0,3, not {text!r}")
    return tuple(chosen)


# Variables that torch's profiler reads once, at its first session: set as early as possible, never over the user's.
#
#     KINETO_LOG_LEVEL   else each start and stop is announced on the job's stderr
#     TEARDOWN_CUPTI     else CUPTI stays attached after a session, and every later CUDA call of the host is 15 to 50 %
#                        slower; with it, steps after the window are as fast as those before

KINETO_SETTINGS = {"KINETO_LOG_LEVEL": "99", "TEARDOWN_CUPTI": "1"}


def set_kineto_settings(environ: MutableMapping[str, str]) -> None:
    """Set what the user has not set."""
    for name, value in KINETO_SETTINGS.items():
        environ.setdefault(name, value)


# Rank of this process in the job: by torch.distributed, else by the launcher's variables, else a single process.


class Place(NamedTuple):
    """One process's place in the job, and how it is known."""

    rank: int
    world_size: int
    local_rank: int | None
    source: str


def place_of_process(environ: Mapping[str, str] | None = None) -> Place:
    """Return this process's place; a process without any sign of others is rank 0 of 1."""
    env = os.environ if environ is None else environ
    by_variables = place_by_variables(env)
    dist = initialized_distributed()
    if dist is None:
        return by_variables or Place(0, 1, None, "alone")
    local = by_variables.local_rank if by_variables else _local_rank_of_device()
    return Place(dist.get_rank(), dist.get_world_size(), local, "torch.distributed")


def initialized_distributed() -> Any:
    """Return `torch.distributed` where a process group is up, else None."""
    import torch.distributed as dist

    return dist if dist.is_available() and dist.is_initialized() else None


def has_other_ranks() -> bool:
    """Return whether a process group with others is up."""
    dist = initialized_distributed()
    return dist is not None and dist.get_world_size() > 1


def place_by_variables(env: Mapping[str, str]) -> Place | None:
    """Return the place in a launcher's variables, None without any."""
    for rank, world_size, local_rank in (  # torchrun, Slurm, Open MPI, Intel MPI and MPICH
        ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
        ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    ):
        if rank in env and world_size in env:
            try:
                return Place(int(env[rank]), int(env[world_size]), _int_or_none(env.get(local_rank)), rank)
            except ValueError:
                continue
    return None


def _int_or_none(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 16 else None


def _local_rank_of_device() -> int | None:
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
