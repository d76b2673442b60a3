"""The results of a sweep as a document, before anybody judges them. Standard library only."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from stepscope.bench.session.results import results, series
from stepscope.bench.sweeps.choices.sweep import Sweep
from stepscope.bench.sweeps.control import SweepMeasurements
from stepscope.bench.sweeps.sessions import Method

_UNCOUNTED = {
    "peak_memory_allocated_gb": None,
    "avg_memory_allocated_gb": None,
    "memory_reason": "a CUDA graph's pool counts as reserved, and as allocated only while the graph is captured",
}


def sweep_document(
    sweep: Sweep, found: SweepMeasurements, *, spec: Mapping[str, Any], method: Method, command: str, **notes: Any
) -> dict[str, Any]:
    """Return the results document of a sweep; `notes` go beside its description."""
    about = {
        **asdict(sweep),
        "variants": [asdict(variant) for variant in sweep.variants],
        "refusals": {name: {"what": r["what"], "reason": r["reason"]} for name, r in found.refusals.items()},
        "method": asdict(method),
        **notes,
    }
    rows = [_row(asdict(variant), found.runs[variant.name], spec=spec, method=method)
            for variant in sweep.variants if variant.name in found.runs]  # fmt: skip
    environment = {"backend": method.backend, "world_size": method.world_size, **found.environment}
    return results(rows, command=command, environment=environment, message=found.message, sweep=about)


def _row(
    variant: dict[str, Any], runs: list[dict[str, Any]], *, spec: Mapping[str, Any], method: Method
) -> dict[str, Any]:
    ordered = sorted(runs, key=lambda record: record["run"])
    first = ordered[0]
    host = [record["peak_host_bytes"] for record in runs if record["peak_host_bytes"] is not None]
    changed = {**spec, **variant["spec"], "options": {**spec.get("options", {}), **variant["options"]}}
    row = series(
        variant["name"],
        config={**changed, **variant["step"], **variant["env"], "warmup_steps": method.warmup_steps},
        runs=[[record] for record in ordered],
        flops_per_step=first["flops_per_step"],
        peak_host_memory_gb=max(host) / 1e9 if host else None,
    )
    row["summary"]["samples_per_step"] = first["samples_per_step"]
    row["summary"] |= _UNCOUNTED if variant["graph_memory"] else {}
    return {**row, "checks": [record["check"] for record in ordered], "reference": first["reference"]}
