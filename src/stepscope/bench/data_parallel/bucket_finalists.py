"""What is measured in full once the best bucket size is known: the default, the best, and DDP's options on top.

Standard library only: the command line reads results by these names.
"""

from typing import Any

DEFAULT_MB = 25.0
_DDP_OPTIONS = ("gradient_as_bucket_view", "static_graph", "find_unused_parameters")


def finalists(implementation: str, best_mb: float) -> list[dict[str, Any]]:
    """Return the series to compare: the default size first, then the best, then each option on top of the best."""
    best = {"bucket_size_mb": best_mb}
    rows = [entry(implementation, f"{DEFAULT_MB:g}MB-default", {"bucket_size_mb": DEFAULT_MB})]
    if best_mb != DEFAULT_MB:
        rows.append(entry(implementation, f"{best_mb:g}MB", best))
    if implementation == "pytorch_ddp":
        rows += [entry(implementation, f"{best_mb:g}MB-{name}", {**best, name: True}) for name in _DDP_OPTIONS]
    return rows


def entry(implementation: str, name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return one entry of a plan's `series`."""
    return {"name": name, "implementation": implementation, "options": options}
