"""From the records of all ranks to the rows of the results: complete or not, as far as the ranks got.

    rank 0   {"what": "samples", "series": "ddp", "run": 0, ...}   \\
    rank 1   {"what": "samples", "series": "ddp", "run": 0, ...}   /   one run of the row "ddp", where all ranks have it

Standard library only.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.bench.session.results import series

Records = Sequence[dict[str, Any]]


def rows(
    by_rank: Sequence[Records], *, entries: Sequence[dict[str, Any]], config: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each of a plan's `series` entries that at least one run was measured of.

    `config` is what all entries share; agreement and trace of an entry are kept beside its summary.
    """
    found = []
    for entry in entries:
        runs = complete_runs(by_rank, entry["name"])
        if not runs:
            continue
        size = first(by_rank, what="size", series=entry["name"])
        row = series(
            entry["name"],
            config={**config, "implementation": entry.get("implementation"), **entry.get("options", {})},
            runs=runs,
        )
        agreed = {k: v for k, v in first(by_rank, what="agreement", series=entry["name"]).items() if k not in _TAGS}
        row["agreement"] = agreed or None
        row["parameters"] = size.get("parameters")
        found.append(row)
    return found


_TAGS = ("what", "series")


def complete_runs(by_rank: Sequence[Records], name: str) -> list[list[dict[str, Any]]]:
    """Return the runs of a series that every rank has measured, each as the records of all ranks."""
    by_run: dict[int, list[dict[str, Any]]] = {}
    for records in by_rank:
        for record in records:
            if record["what"] == "samples" and record["series"] == name:
                by_run.setdefault(record["run"], []).append(record)
    return [ranks for _, ranks in sorted(by_run.items()) if len(ranks) == len(by_rank)]


def first(by_rank: Sequence[Records], **wanted: Any) -> dict[str, Any]:
    """Return the first record with these fields, empty without one."""
    return next(_matching(by_rank, wanted), {})


def every(by_rank: Sequence[Records], **wanted: Any) -> list[dict[str, Any]]:
    """Return all records with these fields, by rank."""
    return list(_matching(by_rank, wanted))


def _matching(by_rank: Sequence[Records], wanted: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for records in by_rank:
        yield from (r for r in records if all(r.get(name) == value for name, value in wanted.items()))


def environment(by_rank: Sequence[Records], *, backend: str) -> dict[str, Any]:
    """Return the machine as rank 0 found it, and the ranks on it."""
    found = {k: v for k, v in first(by_rank, what="machine").items() if k != "what"}
    return {"backend": backend, "world_size": len(by_rank), **found}
