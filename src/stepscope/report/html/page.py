"""The page of one run: everything that it shows, from the account."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owner_costs import CodeNode
from stepscope.cost.alpha_beta import Curve
from stepscope.cost.calibration import Calibration, points_from_run
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.report import report_json
from stepscope.document.values import plain
from stepscope.errors import InputError
from stepscope.report.html.cache import PageParts, page_from
from stepscope.report.html.page_data import ReportData, grid_of, packed
from stepscope.report.html.timeline_data import slices_of, slices_of_other_steps
from stepscope.report.pictures import pictures_of
from stepscope.units import NS_PER_MS, NS_PER_US, printable

# What do collectives take on this machine, and what did they take in this run? Curves and points for one picture.

_SAMPLES = 40


def calibration_curves(account: Account, calibration: Calibration) -> dict[str, Any]:
    """Return measured points, fitted line and interval per operation and world size, and this run's own points.

    Times in microseconds. Only the operations that the run used are there; all of them where it used none.
    """
    seen = _seen(account)
    used = {(p["op"], p["world_size"]) for p in seen}
    ops = {op for op, _ in used}
    kept = [c for c in calibration.curves if c.op in ops] or list(calibration.curves)
    nearest = [c for c in kept if (c.op, c.world_size) in used] or kept
    return {"curves": [_curve(calibration, c) for c in nearest], "run": seen}


def _seen(account: Account) -> list[dict[str, Any]]:
    try:
        points = points_from_run(account.shared)
    except InputError:
        return []  # nothing matched with its size: the curves stand alone
    return [
        {"op": p.op, "world_size": p.world_size, "bytes": p.size_bytes, "us": round(p.time_ns / NS_PER_US, 3)}
        for p in sorted(points)
    ]


def _curve(calibration: Calibration, curve: Curve) -> dict[str, Any]:
    first, last = curve.points[0][0], curve.points[-1][0]
    sizes = np.geomspace(first, max(last, first + 1), _SAMPLES)
    found = [calibration.predict(curve.op, size_bytes=s, world_size=curve.world_size) for s in sizes]
    start, end = curve.pieces.lines()[0], curve.pieces.lines()[-1]
    return {
        "op": curve.op,
        "world_size": curve.world_size,
        "alpha_us": round(start.alpha_ns / NS_PER_US, 3),
        "algbw_gb_per_s": round(1 / end.ns_per_byte, 4) if end.ns_per_byte else None,
        "r2": round(curve.r2, 4),
        "left_out_error": curve.left_out_error,
        "points": [[b, round(t / NS_PER_US, 3)] for b, t in curve.points],
        "line": [
            [round(s), *(round(t / NS_PER_US, 3) for t in (e.time_ns, e.low_ns, e.high_ns))]
            for s, e in zip(sizes.tolist(), found, strict=True)
        ],
    }


# The trees over lines and modules as the page draws them: nested objects with times in milliseconds.

_TIMES = ("host", "device", "comm", "exposed", "backward_host", "backward_device")


def _code_trees_of(account: Account) -> dict[str, Any] | None:
    trees = account.code_trees
    if trees is None:
        return None
    return {"lines": _node(trees.lines), "modules": _node(trees.modules)}


def _node(node: CodeNode) -> dict[str, Any]:
    times = {name: round(getattr(node, f"{name}_ns") / NS_PER_MS, 4) for name in _TIMES}
    return {
        "name": node.name,
        "label": node.label,
        **{name: value for name, value in times.items() if value},
        **({"children": [_node(child) for child in node.children]} if node.children else {}),
    }


# How far may a reader trust the report? One line per thing that was measured about the measurement itself.


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
        gross = "; small times are distorted" if overhead > 20 else ""
        yield f"the profiler made the step {overhead:.1f} % longer{gross}"


# What is the page of a run made of? Its data as text, its title, and its essence in words.


def page_of(data: ReportData) -> str:
    """Return the page's text."""
    return page_from(parts_of(data))


def parts_of(data: ReportData) -> PageParts:
    """Return the parts of the page."""
    step = data.report["step"]["unprofiled_ms"] or data.report["step"]["profiled_ms"]
    said = "unknown" if step is None else f"{step:.2f} ms"
    lines = [f"Verdict: {data.report['verdict']}: {printable(data.report['verdict_reason'])}. Step: {said}."]
    lines += [
        f"{printable(f['title'])}: saves {f['saving_alone_ms']:.2f} ms per step." for f in data.report["findings"]
    ]
    return PageParts(packed(data), str(data.report["run"]["name"]), " ".join(lines))


def render_html(account: Account, diagnosis: Diagnosis, *, calibration: Calibration | None = None) -> str:
    """Return the report as the text of one HTML file, with a picture of the calibration where one is given."""
    return page_of(report_data(account, diagnosis, calibration=calibration))


def report_data(account: Account, diagnosis: Diagnosis, *, calibration: Calibration | None = None) -> ReportData:
    """Return what the page of a run shows."""
    report = plain(report_json(account, diagnosis))  # a page cannot read NaN
    trust = tuple(line for lines in (_ranks(report), _clocks(report), _profiler(report)) for line in lines)
    del report["run"]["sources"]  # paths of whoever made the page: not for whoever reads it
    for rank in report["ranks"]:
        del rank["step_ms"]  # the grid holds it
    _without_what_pictures_hold(report)
    grid = grid_of(account)
    wanted = [r for f in diagnosis.findings for r in f.ranks] + [s.rank for s in account.stragglers]
    slices = slices_of(account, grid, wanted=wanted)
    return ReportData(
        report=report,
        grid=grid,
        slices=slices,
        more_slices=slices_of_other_steps(account, grid, slices, wanted=wanted),
        trust=trust,
        pictures=plain(pictures_of(account, diagnosis, calibration)),
        code_trees=_code_trees_of(account),
        calibration=plain(calibration_curves(account, calibration)) if calibration else None,
    )


def _without_what_pictures_hold(report: dict[str, Any]) -> None:
    for unused in ("memory_steps", "memory_edges"):
        del report[unused]
    for rank in (report["memory"] or {"ranks": []})["ranks"]:
        if rank["rank"] != report["memory"]["fullest_rank"]:
            rank["timeline"] = rank["peak"] = None
