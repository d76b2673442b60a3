"""The page of a benchmark that has just run: what its results folder holds, and what only the whole document shows.

The variants of a sweep against the first, agreement of results, late ranks, and the search for a bucket size.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stepscope.lab.report.sheets import bench_sheet
from stepscope.lab.results.folder import bench_results_of
from stepscope.lab.results.sweeps import VariantResult, Verdict, sweep_verdict
from stepscope.lab.results.times import BenchTimes, bench_times
from stepscope.report.sheet import Section, Sheet, pct, section_of
from stepscope.run.sources import RESULTS_JSON
from stepscope.units import NS_PER_S, ms, printable

Document = Mapping[str, Any]
Row = Mapping[str, Any]


def live_sheet(document: Document, *, name: str) -> Sheet:
    """Return the page of a results document."""
    sheet = bench_sheet(bench_results_of(dict(document), name=name, path=Path(RESULTS_JSON)))
    own = [*_sweep(document), *_straggler(document), *_search(document)]
    unknown = dict.fromkeys(row["summary"].get("overlap_reason") for row in document["series"])
    no_traces = [f"communication unknown: {reason}" for reason in unknown if reason]
    notes = (*sheet.notes, *_agreement(document), *_margin(document), *_shared_cores(document), *no_traces)
    return replace(sheet, sections=(*sheet.sections, *own), notes=notes)


def times_of(row: Row) -> BenchTimes | None:
    """Return the times of one series."""
    return bench_times(row["samples_ms"], warmup_steps=row["config"].get("warmup_steps") or 0)


def _margin(document: Document) -> Iterator[str]:
    found = document.get("recommendation")
    if not found or "sweep" in document:
        return
    if found.get("against"):
        between = f"[{found['time_over_low']:.2f}, {found['time_over_high']:.2f}]"
        yield f"{found['series']}: {found['time_over']:.2f} x {between} the time of {found['against']}"
    if found.get("least_memory") not in (None, found["series"]):
        yield f"where memory is short: {found['least_memory']} takes least"
    if found.get("saving_pct"):
        between = f"[{found['saving_low_pct']:.1f}, {found['saving_high_pct']:.1f}]"
        yield f"{found['series']} saves {found['saving_pct']:.1f} % {between}"


def _shared_cores(document: Document) -> Iterator[str]:
    where = document["environment"]
    most = max((row["config"].get("world_size") or 1 for row in document["series"]), default=1)
    if where.get("backend") == "gloo" and where.get("cpus") and most * where.get("threads", 1) > where["cpus"]:
        yield f"{most} ranks share {where['cpus']} cores, so they cannot all run at full speed"


def _agreement(document: Document) -> Iterator[str]:
    checked = [(row["name"], row["agreement"]) for row in document["series"] if row.get("agreement")]
    if len(checked) < 2:
        return
    apart = [(name, a) for name, a in checked if not a["agrees"]]
    for name, a in apart:
        yield f"{name} DIFFERS from {checked[0][0]}: {_errors(a)}"
    if not apart:
        worst = max((a for _, a in checked), key=lambda a: a["weight_error"])
        same = "all equal bit by bit" if all(a["equal"] for _, a in checked) else f"at most {_errors(worst)}"
        yield f"same results after {worst['steps']} steps: {same}"


def _errors(a: Row) -> str:
    gradient = "unknown" if a["gradient_error"] is None else f"{a['gradient_error']:.1e}"
    return f"gradient {gradient}, weights {a['weight_error']:.1e}, loss {a['loss_error']:.1e} (relative)"


def _straggler(document: Document) -> list[Section]:
    rows = [row for row in document["series"] if row.get("straggler")]

    def late(row: Row, key: str) -> float | None:
        planted = row["straggler"]["planted_rank"]
        values = [one[0][key] for one in row["straggler"]["found"] if one and one[0]["rank"] == planted]
        return sum(values) / len(values) if values else None

    def named(row: Row) -> str:
        found = [one[0]["rank"] for one in row["straggler"]["found"] if one]
        ranks = ", ".join(map(str, sorted(set(found))))
        return f"rank {ranks} in {len(found)} of {len(row['straggler']['found'])} runs" if found else "none"

    return section_of(
        "straggler",
        "A late rank",
        "Named by the step logs of light mode, from own times before the wait for gradients.",
        rows,
        ("delay of the rank", "ms", lambda row: row["straggler"]["planted_ms"]),
        ("throughput lost", "pct", lambda row: row["straggler"]["lost_throughput_pct"]),
        ("from", "pct", lambda row: row["straggler"]["lost_low_pct"]),
        ("to", "pct", lambda row: row["straggler"]["lost_high_pct"]),
        ("late by", "ms", lambda row: late(row, "late_ms")),
        ("score", "number", lambda row: late(row, "score")),
        ("named", "text", named),
    )


def _search(document: Document) -> list[Section]:
    search = document.get("search") or {}
    same = [
        f"{float(size):g} MB cuts this model into the same buckets as {other:g} MB"
        for size, other in (search.get("same_as") or {}).items()
    ]
    return section_of(
        "search",
        "Search for the bucket size",
        "; ".join(same),
        (search.get("ratios") or {}).items(),
        ("bucket", "bytes", lambda one: float(one[0]) * 1e6),
        ("time over the best", "x", lambda one: one[1]),
    )


# A sweep: each variant against the first, whether results agree, and how they were compared.


def _sweep(document: Document) -> list[Section]:
    sweep = document.get("sweep")
    if not sweep:
        return []
    verdict = sweep_verdict(document)
    lines = [_method(sweep), *_judged_otherwise(sweep, verdict)]
    lines += [
        f"{v.name}: {v.status}: {printable(v.reason or '', width=300)}"
        for v in verdict.variants
        if v.status != "measured"
    ]
    if "fitting" in sweep:
        lines.append(_fitting(sweep["fitting"], document["environment"].get("device_memory_gb")))
    if verdict.mfu_reason:
        lines.append(verdict.mfu_reason)
    found = section_of(
        "variants",
        "Variants",
        "",
        [v for v in verdict.variants if v.step_ns is not None],
        ("variant", "text", lambda v: v.name),
        ("step", "ms", lambda v: ms(v.step_ns)),
        ("times as fast", "x", lambda v: v.speedup or None),
        ("from", "x", lambda v: 1 / v.change.high if v.change else None),
        ("to", "x", lambda v: 1 / v.change.low if v.change else None),
        ("agrees", "text", _agrees),
        ("peak memory", "bytes", lambda v: v.peak_memory_gb and 1e9 * v.peak_memory_gb),
        ("reserved", "bytes", lambda v: v.reserved_memory_gb and 1e9 * v.reserved_memory_gb),
        ("first step", "ms", lambda v: v.first_step_ns and 1000 * v.first_step_ns / NS_PER_S),
        ("gradient error", "text", lambda v: _error(v.agreement and v.agreement.gradient_error)),
        ("loss error", "text", lambda v: _error(v.agreement and v.agreement.loss_error)),
        ("MFU", "pct", lambda v: pct(v.mfu)),
    )
    return [*found, Section("method", "How the variants were compared", tuple(lines))]


def _agrees(variant: VariantResult) -> str:
    return {True: "yes", False: "NO", None: "?"}[variant.agreement.agrees if variant.agreement else None]


def _error(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _judged_otherwise(sweep: Mapping[str, Any], verdict: Verdict) -> list[str]:
    usual = {v["name"]: (v.get("tolerance") or sweep["tolerance"])["why"] for v in sweep["variants"]}
    found: dict[str, list[str]] = {}
    for v in verdict.variants:
        if v.agreement and v.agreement.agrees is not None and v.agreement.why != usual[v.name]:
            found.setdefault(v.agreement.why, []).append(v.name)
    return [f"{', '.join(names)}: {why}" for why, names in found.items()]


def _method(sweep: Mapping[str, Any]) -> str:
    tolerance = sweep["tolerance"]
    other = "the same batch in two halves" if sweep["reference"] == "halves" else "the first variant"
    bounds = f"gradient {tolerance['gradient']:.1e}, loss {tolerance['loss']:.1e}: {tolerance['why']}"
    own: dict[str, list[str]] = {}
    for v in sweep["variants"]:
        if found := v.get("tolerance"):
            own.setdefault(f"{found['gradient']:.1e} and {found['loss']:.1e}", []).append(v["name"])
    more = "".join(f"; {', '.join(names)} {bound}" for bound, names in own.items())
    return f"speed is per sample; results agree with {other} within ({bounds}{more}), relative"


def _fitting(found: Mapping[str, Any], device_memory_gb: float | None) -> str:
    limit_gb = found["memory_limit_bytes"] / 1e9 if found["memory_limit_bytes"] else device_memory_gb
    where = f" in {limit_gb:.2f} GB" if limit_gb else ""
    reasons = {int(size): reason for size, reason in found["did_not_fit"].items()}
    largest = f"largest batch that fits{where}: {found['largest']}"
    if not reasons:
        return largest
    return f"{largest}; {min(reasons)} does not: {printable(reasons[min(reasons)], width=140)}"
