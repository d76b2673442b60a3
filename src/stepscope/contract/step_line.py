"""One line of `rankNNNNN.steps.jsonl`: a step that ended, when, in which phase of the recording, and its regions.

    {"schema": 1, "rank": 0, "world_size": 2, ...}                              header
    {"step": 7, "start_ns", "end_ns", "dur_ns", "device_ns", "profiled", "phase",
     "regions": {"forward_pass": {"ns", "n"}}, "cpu": {"run_ns", "delay_ns"},
     ...what samplers add}                                                      one per step

`start_ns` and `end_ns` are epoch times, `dur_ns` is by a clock that never jumps; `device_ns` is the time between the
device's ends of two steps, of short ones the mean of a few, None where it was not measured. A region's time is its own,
without regions inside it. `cpu` is how long the training thread ran, the mean of steps that were timed together, and in
trials how long it was ready to run and had no core, by the kernel. `collectives.device_ns` is the mean time per step in
collectives of NCCL over the last steps, waits included.
"""

import contextlib
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache, lru_cache
from math import nan
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from stepscope.contract.lateness import StepTimes
from stepscope.contract.run_folder import json_object
from stepscope.side_file import appended

# the phases of a recording: up to the window, the profiler's own warm-up, the window itself, and later
BEFORE, WARMUP, WINDOW, AFTER = "before", "warmup", "window", "after"

DATA_LOADING = "data_loading"
FORWARD = "forward_pass"
BACKWARD = "backward_pass"
GRADIENT_SYNC = "gradient_sync"
# column of the time that a rank waits for the others, where it waits on the host
HOST_WAIT = "regions.gradient_sync.ns"
OPTIMIZER = "optimizer_step"
LR_SCHEDULING = "lr_scheduling"
CLIPPING = "gradient_clipping_warmup"
# What recurs in some steps only.
LOADER_START = "loader_start"
CHECKPOINT = "checkpoint"
EVALUATION = "evaluation"
GARBAGE_COLLECTION = "garbage_collection"
COMPILATION = "compilation"

# in every step of a job that has autograd's anomaly detection on: stacks stored for its messages
ANOMALY_DETECTION = "anomaly_detection"

# steps at the start of a process that cannot stand for the others: compilation, first calls
FIRST_STEPS = 2
# a step that takes more than this times the median was slowed down
LONG_STEP = 1.5

# `{name: {"ns": own time, "n": how often}}`
RegionTimes = dict[str, dict[str, int]]


class StepLine(TypedDict):
    """A line of the log; samplers may add more under names of their own."""

    step: int
    start_ns: int
    end_ns: int
    dur_ns: int
    device_ns: int | None
    profiled: bool
    phase: str
    regions: RegionTimes
    cpu: NotRequired[dict[str, int]]
    memory: NotRequired[dict[str, Any]]
    collectives: NotRequired[dict[str, Any]]


def counts(line: Mapping[str, Any]) -> bool:
    """Return whether a step ran without the profiler, its warm-up included."""
    return not line.get("profiled") and line.get("phase") != WARMUP


def waited_ns(line: Mapping[str, Any]) -> int | None:
    """Return how long a step waited on the host for the others' gradients, None where that was not measured."""
    regions = line.get("regions")
    return _count(regions.get(GRADIENT_SYNC), "ns") if isinstance(regions, Mapping) else None


def times_of_lines(lines: Sequence[Mapping[str, Any]]) -> StepTimes:
    """Return the columns of steps that own times need; the first ones of a process do not count."""
    host = [waited_ns(line) for line in lines]
    device = [_count(line.get("collectives"), "device_ns") for line in lines]
    plain = [counts(line) for line in lines]
    settled = [True, *plain]  # not right after the profiler: ranks still wait for each other's export
    return StepTimes(
        [line["step"] for line in lines],
        [line["dur_ns"] for line in lines],
        [nan if ns is None else float(ns) for ns in host],
        [nan if ns is None else float(ns) for ns in device],
        [all(both) and x["step"] >= FIRST_STEPS for x, *both in zip(lines, plain, settled, strict=False)],
    )


def _count(found: object, name: str) -> int | None:
    ns = found.get(name) if isinstance(found, Mapping) else None
    return ns if isinstance(ns, int) and not isinstance(ns, bool) else None


# Which part of training does the name of a range mean? One table of aliases for all frameworks.
#
# Names of whole steps (`step_3`, `training_step`, `ddp_step`) mean no part: what runs inside them decides.


class Region(IntEnum):
    """A part of a training step."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3
    DATA = 4


# what the autograd engine records around every node of a backward pass
EVALUATE = "autograd::engine::evaluate_function"

# the nodes themselves, as torch 1.8 recorded them
OLD_NODE = re.compile(r"^\w+Backward\d*$|^(struct )?torch::autograd::")

# Around the name proper: `## forward ##`, `[pl][profile][Strategy]DDPStrategy.backward`, `PP:0F1`.
_DECORATION = re.compile(r"^(\[pl\]|\[profile\]|\[\w+\]|pp:|#|\s)+|[#\s]+$", re.IGNORECASE)

# First match wins.
_PATTERNS = (
    (r"^enumerate\(dataloader\)#", Region.DATA),
    (r"^(train_|val_)?data_?loader(_next|\.__next__)?$|__next__$", Region.DATA),
    (r"^(data|input)([_ ](load(ing)?|wait|fetch|prep\w*))?$", Region.DATA),
    (r"^(load|fetch|get|next|wait_for|copy)_(next_|training_)?(batch|data|input)s?(_to_\w+)?$", Region.DATA),
    (r"^batch_(load|fetch|to_device|transfer)\w*$", Region.DATA),
    (r"^optimizer\.(step|zero_grad)#", Region.OPTIMIZER),
    (r"^(.*\.)?optim(izer)?([_ ]?step)?$|^(.*\.)?zero_grad$|^deepspeedengine\.step$", Region.OPTIMIZER),
    (r"^fsdp::(pre_backward|post_backward|backward_prefetch|root_post_backward)", Region.BACKWARD),
    (r"^fsdp::(pre_forward|post_forward|root_pre_forward)", Region.FORWARD),
    (r"\._?(pre|post)_backward\w*$", Region.BACKWARD),
    (r"\._?(pre|post)_forward\w*$", Region.FORWARD),
    (r"^(.*\.)?(backward|bwd)([_ ](pass|step|with_comm|compute))?$|^backward:", Region.BACKWARD),
    (r"^(.*\.)?(forward|fwd)([_ ](pass|step|compute))?$|^forward:", Region.FORWARD),
    (r"^(compute_)?loss(_fn)?$", Region.FORWARD),
    (r"\((f|forward|fwd)\)$", Region.FORWARD),  # parts of a layer where passes overlap: `attn(F)`, `mlp(B)`, `mlp(W)`
    (r"\((b|w|backward|bwd|wgrad|dgrad)\)$", Region.BACKWARD),
    (r"^\d+f\d+$", Region.FORWARD),
    (r"^\d+[biw]\d+$", Region.BACKWARD),
    (r"^(gradient|grad)_(sync|clip\w*|norm)\w*$|^clip_grad\w*$|^(lr_)?schedul\w+$", Region.OTHER),
)


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], Region], ...]:
    return tuple((re.compile(pattern), region) for pattern, region in _PATTERNS)  # none where only steps are timed


@lru_cache(maxsize=4096)
def named_region(name: str) -> Region | None:
    """Return the training phase of a range's name, None if unknown.

    >>> [named_region(s) for s in ("## forward ##", "Optimizer.step#AdamW.step", "PP:0B3", "step_4")]
    [<Region.FORWARD: 1>, <Region.OPTIMIZER: 3>, <Region.BACKWARD: 2>, None]
    """
    plain = _DECORATION.sub("", name).lower()
    return next((region for pattern, region in _compiled() if pattern.search(plain)), None)


def prepares_input(frame: str) -> bool:
    """Return whether a Python frame is the preprocessing of an inference pipeline.

    >>> prepares_input("transformers/pipelines/video_classification.py(129): preprocess")
    True
    """
    return "pipelines/" in frame and frame.endswith(": preprocess")


# Step logs while they grow: the reader of `watch` and of alarms, on both sides.

_MAX_READ_BYTES = 4 << 20


def is_count(value: object) -> bool:
    """Return whether a value is a whole number that a time or a count can have."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def steps_of(lines: list[bytes], *, needs: tuple[str, ...] = ("step", "dur_ns")) -> list[dict[str, Any]]:
    """Return the steps among some lines; a header, or a line that is damaged, is none."""
    found = (json_object(line) for line in lines if line)
    return [line for line in found if line is not None and all(is_count(line.get(name)) for name in needs)]


class GrowingLog:
    """One rank's log; `read` continues where it ended. A line that is still being written waits for the next time.

    `near_end_bytes` begins with the first whole line of so much at its end.
    """

    def __init__(
        self, path: Path, *, near_end_bytes: int | None = None, needs: tuple[str, ...] = ("step", "dur_ns")
    ) -> None:
        self._path, self._needs = path, needs
        self._limit = near_end_bytes or _MAX_READ_BYTES
        self._at = 0 if near_end_bytes is None else None
        self._rest = b""

    def read(self) -> list[dict[str, Any]]:
        """Return the steps that are new; none from storage that fails for a while."""
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            data, self._at = appended(self._path, self._at, max_bytes=self._limit)
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest, self._limit = self._rest[:_MAX_READ_BYTES], _MAX_READ_BYTES
        return steps_of(lines, needs=self._needs)
