"""`run.json`: what a run was, put together by rank 0's helper from the facts that every rank left in the folder.

    rank00000.facts.jsonl, rank00001.facts.jsonl, ...  ->  run.json

Standard library only, no torch: it runs in the helper process. What is not known is None with its reason in
`reasons`; a rank that left no facts is in `missing_ranks`. Per-rank entries are keyed by the rank's number as text.
"""

import datetime
import statistics
import time
from collections.abc import Sequence
from typing import Any, cast

from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.contract.run_json import RunJson
from stepscope.record.steps.statistics import StepStatistics
from stepscope.units import ms

Facts = dict[str, Any]
MAX_DIFFERENCE = 0.02
"""of steps after the window from those before it that is not worth a line"""

# Facts of the job, equal on all ranks: the lowest rank that knows one speaks for it.
_OF_THE_JOB = (
    "run_id",
    "command",
    "backend",
    "strategy",
    "device",
    "versions",
    "config",
    "environment",
    "commit",
    "model",
    "optimizer",
    "ddp",
    "step_unit",
)
# Facts of a rank that run.json repeats.
_OF_A_RANK = (
    "host",
    "pid",
    "local_rank",
    "device",
    "boot_id",
    "ended",
    "clock_probes",
    "warnings",
    "lines_dropped",  # before they reached the helper
    "writing",  # what the helper could not write, at once or at all
)


def rank_facts(
    facts: Facts,
    *,
    rank: int,
    world_size: int,
    files: list[Facts],
    steps: StepStatistics,
    ended: str,
    writing: Facts | None = None,
) -> Facts:
    """Return the content of one rank's facts file."""
    return {
        "schema": SCHEMA,
        "rank": rank,
        "world_size": world_size,
        **redacted(facts),
        "files": files,
        "steps": steps.summary(),
        "ended": ended,
        "writing": writing,
        "written_ns": time.time_ns(),
    }


def run_description(found: Sequence[Facts], *, world_size: int, finished: bool) -> RunJson:
    """Return the content of run.json from the facts of the ranks that left some, in order of rank."""
    job = {name: _first(found, name) for name in _OF_THE_JOB}
    created_ns = min((f["created_ns"] for f in found if "created_ns" in f), default=time.time_ns())
    flops = _flops(found, world_size)
    tokens = {name: _whole_job(found, name, world_size) for name in ("tokens_per_step", "samples_per_step")}
    described = {
        "schema": SCHEMA,
        "created": _iso(created_ns),
        "created_ns": created_ns,
        "finished": finished,
        **job,
        "world_size": world_size,
        "missing_ranks": _missing(found, world_size),
        "hosts": _hosts(found),
        "process_groups": _groups(found),
        **flops,
        **tokens,
        **_unprofiled(found),
        "windows": _windows(found),
        "warnings": _warnings(found),
        "ranks": {str(f["rank"]): _of_a_rank(f) for f in found},
        "reasons": _reasons(job, flops, tokens, found),
    }
    return cast(RunJson, described)


def _first(found: Sequence[Facts], name: str) -> Any:
    return next((f[name] for f in found if f.get(name) is not None), None)


def _iso(time_ns: int) -> str:
    return datetime.datetime.fromtimestamp(time_ns / 1e9, tz=datetime.UTC).isoformat(timespec="seconds")


def _missing(found: Sequence[Facts], world_size: int) -> list[int]:
    present = {f["rank"] for f in found}
    return [rank for rank in range(world_size) if rank not in present]


def _hosts(found: Sequence[Facts]) -> dict[str, list[int]]:
    hosts: dict[str, list[int]] = {}
    for f in found:
        hosts.setdefault(str(f.get("host")), []).append(f["rank"])
    return hosts


def _groups(found: Sequence[Facts]) -> list[Facts]:
    """Return every process group of the job once; one rank knows only the groups it is in."""
    groups: dict[tuple[str, tuple[int, ...]], Facts] = {}
    for f in found:
        for group in f.get("process_groups") or []:
            groups.setdefault((group["name"], tuple(group["ranks"])), group)
    return sorted(groups.values(), key=lambda g: (-len(g["ranks"]), g["name"], g["ranks"]))


def _flops(found: Sequence[Facts], world_size: int) -> Facts:
    """Return the job's FLOPs per step: the sum over ranks of what each was seen to do in one step.

    `flops_per_step` are the model's: a backward pass of at most twice its forward, so that recomputation is left
    out. `hardware_flops_per_step` is all that was executed.
    """
    counted = [f["flops"] for f in found if f.get("flops")]
    if len(counted) < world_size:
        return {"flops_per_step": None, "hardware_flops_per_step": None}
    total = sum(c["total"] for c in counted)
    model = sum(min(c["total"], 3 * c["forward"]) if c["forward"] else c["total"] for c in counted)
    return {"flops_per_step": model, "hardware_flops_per_step": total}


def _whole_job(found: Sequence[Facts], name: str, world_size: int) -> int | None:
    """Return the sum over ranks, each replica counted once: ranks that share a replica saw the same samples."""
    known = [f[name] for f in found if f.get(name) is not None]
    if len(known) < world_size:
        return None
    per_replica = max((f.get("ranks_per_replica") or 1 for f in found), default=1)
    return int(sum(known)) // int(per_replica)


def _unprofiled(found: Sequence[Facts]) -> Facts:
    """Return the step's time without and with the profiler: the median over ranks of each rank's median.

    By device events where there are any (a host that runs ahead does not take as long as the step does).
    """
    out: Facts = {}
    for name, part in (("unprofiled_step_ms", "unprofiled"), ("profiled_step_ms", "window")):
        out[name] = _median_ms([f["steps"][part] for f in found if f["steps"].get(part)])
    for part in ("before", "after"):
        known = [f["steps"][part] for f in found if f["steps"].get(part)]
        out[f"unprofiled_{part}"] = {
            "steps": min((k["steps"] for k in known), default=0),
            "median_ms": _median_ms(known),
        }
    return out


def _warnings(found: Sequence[Facts]) -> list[str]:
    """Return a line where steps after the window differ from those before it by more than chance on most ranks."""
    compared = [(f, f["steps"]["after_to_before"]) for f in found if f["steps"].get("after_to_before")]
    beyond = [(f, c) for f, c in compared if abs(c["ratio"] - 1) > MAX_DIFFERENCE and not c["low"] <= 1 <= c["high"]]
    if not beyond or 2 * len(beyond) <= len(compared):
        return []
    ratio = statistics.median(c["ratio"] for _, c in beyond)
    low, high = min(c["low"] for _, c in beyond), max(c["high"] for _, c in beyond)
    longer = "longer" if ratio > 1 else "shorter"
    on_cuda = any((f.get("device") or {}).get("kind") == "cuda" for f, _ in beyond)
    why = "CUPTI may still be attached (this torch or driver does not detach it)" if on_cuda and ratio > 1 else ""
    why = why or "the job changed on the way, or the machine did"
    return [
        f"steps after the window are {100 * abs(ratio - 1):.1f} % {longer} than those before it "
        f"({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %): {why}; those before it are used"
    ]


def _median_ms(parts: list[Facts]) -> float | None:
    device = [p["device_median_ns"] for p in parts if p.get("device_median_ns") is not None]
    host = [p["median_ns"] for p in parts]
    return ms(statistics.median(device or host)) if parts else None


def _windows(found: Sequence[Facts]) -> list[Facts]:
    """Return one entry per window: its steps, and per rank the trace or the reason why there is none."""
    windows: dict[int, Facts] = {}
    for f in found:
        traces = {w["name"]: w for w in f["files"] if w.get("kind") == "trace"}
        for outcome in f.get("windows") or []:
            window = windows.setdefault(outcome["window"], {"window": outcome["window"], "ranks": {}})
            window["ranks"][str(f["rank"])] = {**outcome, **traces.get(outcome.get("name"), {})}
    return [windows[k] for k in sorted(windows)]


def _of_a_rank(f: Facts) -> Facts:
    return {**{name: f.get(name) for name in _OF_A_RANK}, "flops": f.get("flops"), "steps": f["steps"]}


def _reasons(job: Facts, flops: Facts, tokens: Facts, found: Sequence[Facts]) -> dict[str, str]:
    """Return why a number is None or a kind of file is not there, by its name."""
    said = {name: why for f in found for name, why in (f.get("reasons") or {}).items()}
    unknown = [name for name, value in {**job, **flops, **tokens}.items() if value is None]
    missing_files = {name: said[name] for name in ("owners",) if name in said}
    return {**{name: said.get(name, "not every rank reported it") for name in unknown}, **missing_files}
