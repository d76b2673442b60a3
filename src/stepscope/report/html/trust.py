"""How far may a reader trust the report? One line per thing that was measured about the measurement itself."""

from collections.abc import Iterator
from typing import Any

_GROSS_OVERHEAD_PCT = 20


def trust_lines(report: dict[str, Any]) -> tuple[str, ...]:
    """Return what is known of completeness, clocks and the profiler's own cost, from the report's JSON."""
    return tuple(line for lines in (_ranks(report), _clocks(report), _profiler(report)) for line in lines)


def _ranks(report: dict[str, Any]) -> Iterator[str]:
    run = report["run"]
    read, world = run["num_ranks"], run["world_size"]
    of = "an unknown number of" if world is None else str(world)
    events = sum(r["num_events"] for r in report["ranks"])
    steps = run["num_steps"]
    yield f"{read} of {of} ranks read, {events:,} events, {steps} recorded step{'' if steps == 1 else 's'}"
    if run.get("asked_by"):
        yield f"window {run['window']} of the job, pulled by: {run['asked_by']}"
    by_order = [r["rank"] for r in report["ranks"] if r.get("rank_source") == "order"]
    if by_order and read > 1:
        yield f"{len(by_order)} ranks are numbered by the order of their files: nothing in them says their rank"


def _clocks(report: dict[str, Any]) -> Iterator[str]:
    known = [r["clock_uncertainty_us"] for r in report["ranks"] if r["clock_uncertainty_us"] is not None]
    if known:
        worst = max(known)
        yield f"clocks aligned by matched collectives, within ±{worst:,.0f} µs on the least certain rank"
    elif report["run"]["num_ranks"] > 1:
        yield "clocks of the ranks are not aligned: no collective could be matched"


def _profiler(report: dict[str, Any]) -> Iterator[str]:
    overhead = report["step"]["profiler_overhead_pct"]
    if overhead is None:
        yield "what the profiler itself costs is unknown: no step without it was recorded"
    elif overhead <= 0:
        yield "the step was no longer under the profiler than without it"
    else:
        gross = "; small times are distorted" if overhead > _GROSS_OVERHEAD_PCT else ""
        yield f"the profiler made the step {overhead:.1f} % longer{gross}"
