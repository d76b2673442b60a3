"""`run.json`: what a run was. The helper of rank 0 writes it last; the desk checks every value before it uses it.

What is not known is None with its reason in `reasons`; a rank that left no facts is in `missing_ranks`. Entries per
rank are keyed by the rank's number as text. Numbers per step are of the whole job.
"""

from typing import Any, TypedDict


class RunJson(TypedDict):
    """The whole file."""

    schema: int
    created: str
    created_ns: int
    finished: bool
    run_id: str | None
    command: Any
    backend: str | None
    strategy: Any
    device: dict[str, Any] | None
    versions: dict[str, Any] | None
    config: dict[str, Any] | None
    environment: dict[str, Any] | None
    commit: str | None
    model: dict[str, Any] | None
    optimizer: Any
    ddp: dict[str, Any] | None
    step_unit: str | None
    world_size: int
    missing_ranks: list[int]
    hosts: dict[str, list[int]]
    process_groups: list[dict[str, Any]]
    flops_per_step: int | None
    hardware_flops_per_step: int | None
    tokens_per_step: int | None
    samples_per_step: int | None
    unprofiled_step_ms: float | None
    profiled_step_ms: float | None
    unprofiled_before: dict[str, Any]
    unprofiled_after: dict[str, Any]
    windows: list[dict[str, Any]]
    warnings: list[str]
    ranks: dict[str, dict[str, Any]]
    reasons: dict[str, str]
