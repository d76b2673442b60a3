"""A comparison as one HTML file that needs no network: the pieces of the report's page around another script."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import Diagnosis
from stepscope.report.html.cache import assembled
from stepscope.report.html.page_data import KINDS, ReportData, Slices, grid_of, packed
from stepscope.report.html.timeline_data import slices_of
from stepscope.units import NS_PER_MS, NS_PER_US, printable

_SCRIPTS = (
    "unpack",
    "numbers",
    "elements",
    "theme",
    "state",
    "contents",
    "sized",
    "tables",
    "compare_charts",
    "compare_lanes",
    "compare",
)


def render_comparison(document: dict[str, Any], *, lanes: dict[str, Any] | None = None) -> str:
    """Return the page of a comparison, from its JSON and the lanes of a step of each side (`side_by_side`)."""
    data = ReportData(report={**document, "lanes": lanes}, grid=None, slices=None)
    title = f"{document['a']['name']} against {document['b']['name']}"
    if document["basis"] == "bench":
        said = [(s["name"], s["verdict"], s["step_ms"]) for s in document["series"]]
    else:
        said = [("step", document["verdict"], document["step_ms"])]
    return assembled(
        packed(data),
        scripts=_SCRIPTS,
        title=title,
        in_words=" ".join(f"{printable(name)}: {verdict}{_times(d)}." for name, verdict, d in said),
    )


def _times(step: dict[str, Any]) -> str:
    known = step["a"] is not None and step["b"] is not None
    return f", {step['a']:.2f} to {step['b']:.2f} ms" if known else ""


# What ran in a typical step of two runs, as lanes to be drawn under each other: rank 0, and the rank that is worst.
#
#     {"ranks": [{"rank", "why", "sides": [{"step", "span_ms", "names", "slices": [[kind, start, dur, name]]}]}]}
#
# Starts and durations are in microseconds. A transfer's wait for the last rank is a slice of its own.

# of one rank and side; the longest are kept
_MAX_SLICES = 4000
# `KINDS` of the page's script has waiting as its last
_TRANSFER, _WAIT = KINDS.index("transfer"), len(KINDS)

Side = tuple[Account, Diagnosis]


def side_by_side(a: Side, b: Side) -> dict[str, Any] | None:
    """Return the lanes of both sides, None where a side shows nothing or they share no rank."""
    shared = sorted({r.rank for r in a[0].run.ranks} & {r.rank for r in b[0].run.ranks})
    if not shared:
        return None
    chosen = {shared[0]: "the first rank"} | _worst(a, b, shared)
    drawn = [slices_of(side[0], grid_of(side[0]), wanted=list(chosen)) for side in (a, b)]
    if any(slices is None for slices in drawn):
        return None
    ranks = [(rank, why) for rank, why in chosen.items() if all(rank in s.ranks for s in drawn if s)]
    if not ranks:
        return None
    return {
        "ranks": [{"rank": rank, "why": why, "sides": [_lanes(s, rank) for s in drawn if s]} for rank, why in ranks]
    }


def _worst(a: Side, b: Side, shared: Sequence[int]) -> dict[int, str]:
    named = [
        (f.alone_ns, rank, f"{f.id} in {name}")
        for name, (_, diagnosis) in (("A", a), ("B", b))
        for f in diagnosis.findings
        for rank in f.ranks[:1]
        if rank in shared and len(f.ranks) < len(shared)
    ]
    if not named:
        return {}
    _, rank, why = max(named)
    return {rank: why}


def _lanes(s: Slices, rank: int) -> dict[str, Any]:
    mine = np.flatnonzero(s.rank == s.ranks.index(rank))
    kept = np.sort(mine[np.argsort(-s.dur_ns[mine], kind="stable")[:_MAX_SLICES]])
    waits = kept[s.wait_ns[kept] > 0]
    start = np.concatenate((s.start_ns[kept] + s.wait_ns[kept], s.start_ns[waits]))
    dur = np.concatenate((s.dur_ns[kept] - s.wait_ns[kept], s.wait_ns[waits]))
    kind = np.concatenate((s.kind[kept].astype(np.int64), np.full(len(waits), _WAIT)))
    names, name = np.unique(np.concatenate((s.name[kept], s.name[waits])), return_inverse=True)
    order = np.argsort(start, kind="stable")
    columns = (kind[order], (start[order] / NS_PER_US).round(1), (dur[order] / NS_PER_US).round(1), name[order])
    return {
        "step": s.step,
        "span_ms": s.span_ns / NS_PER_MS,
        "names": [s.names[n] for n in names.tolist()],
        "slices": [list(row) for row in zip(*(c.tolist() for c in columns), strict=True)],
        "left_out": len(mine) - len(kept),
    }
