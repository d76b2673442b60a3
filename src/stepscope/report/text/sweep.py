"""A sweep on the terminal: each variant against the first, whether results agree, and the advice."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from stepscope.report.fit import print_fitting
from stepscope.report.text.terminal import name_text, plain_table
from stepscope.results.sweeps.judgement import VariantResult
from stepscope.results.sweeps.verdict import Verdict
from stepscope.units import NS_PER_MS, NS_PER_S, printable

_ANY_WIDTH = 1000
_LEFT_OUT_FIRST = ("reserved GB", "loss", "first step s", "gradient", "MFU %", "peak GB")


def print_sweep(document: Mapping[str, Any], verdict: Verdict, out: Console) -> None:
    """Print the question, the variants, and what to do."""
    sweep = document["sweep"]
    out.print(f"{sweep['name']}: {sweep['question']}", markup=False)
    print_fitting(_table(verdict, out), out, least_needed=_LEFT_OUT_FIRST)
    out.print(_method(sweep), markup=False)
    for line in _judged_otherwise(sweep, verdict):
        out.print(line, markup=False)
    for variant in (v for v in verdict.variants if v.status != "measured"):
        out.print(f"{variant.name}: {variant.status}: {printable(variant.reason or '', width=300)}", markup=False)
    if "fitting" in sweep:
        out.print(_fitting(sweep["fitting"], document["environment"].get("device_memory_gb")), markup=False)
    if verdict.mfu_reason:
        out.print(verdict.mfu_reason, markup=False)
    for line in verdict.advice:
        out.print(f"-> {line}", markup=False)


def _table(verdict: Verdict, out: Console) -> Table:
    """Return the measured variants; columns that only a GPU has are left out where there is none."""
    measured = [v for v in verdict.variants if v.step_ns is not None]
    columns = [_column(v, first=v is measured[0]) for v in measured]
    known = [title for title in (columns[0] if columns else {}) if any(c[title] is not None for c in columns)]
    table = plain_table(out, "", *known)
    table.columns[0].no_wrap = True
    for variant, cells in zip(measured, columns, strict=True):
        table.add_row(name_text(variant.name), *(cells[title] or "?" for title in known))
    if out.soft_wrap:  # a pipe has no edge to cut at
        table.width = Measurement.get(out, out.options.update(width=_ANY_WIDTH), table).maximum
    return table


def _column(variant: VariantResult, *, first: bool) -> dict[str, str | None]:
    found = variant.agreement
    return {
        "median ms": _number(variant.step_ns, ".2f", per=NS_PER_MS),
        "against the first": "1" if first else _gain(variant),
        "peak GB": _gigabytes(variant.peak_memory_gb),
        "reserved GB": _gigabytes(variant.reserved_memory_gb),
        "first step s": _number(variant.first_step_ns, ".2f", per=NS_PER_S),
        "gradient": _number(found.gradient_error if found else None, ".1e"),
        "loss": _number(found.loss_error if found else None, ".1e"),
        "agrees": {True: "yes", False: "NO", None: "?"}[found.agrees if found else None],
        "MFU %": _number(variant.mfu, ".1f", per=0.01),
    }


def _judged_otherwise(sweep: Mapping[str, Any], verdict: Verdict) -> list[str]:
    """Return by what results were judged where it was not the sweep's tolerance; the advice has what is unknown."""
    usual = {v["name"]: (v.get("tolerance") or sweep["tolerance"])["why"] for v in sweep["variants"]}
    found: dict[str, list[str]] = {}
    for v in verdict.variants:
        if v.agreement and v.agreement.agrees is not None and v.agreement.why != usual[v.name]:
            found.setdefault(v.agreement.why, []).append(v.name)
    return [f"{', '.join(names)}: {why}" for why, names in found.items()]


def _gain(variant: VariantResult) -> str:
    if variant.gain is None:
        return "?"
    text = f"{variant.gain.speedup:.2f} x [{variant.gain.low:.2f}, {variant.gain.high:.2f}]"
    return f"{text} (noise)" if variant.gain.equal else text


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


def _gigabytes(value: float | None) -> str | None:
    """Return enough digits to tell small models apart."""
    return _number(value, ".2f" if value is None or value >= 1 else "#.3g")


def _number(value: float | None, form: str, *, per: float = 1.0) -> str | None:
    return None if value is None else f"{value / per:{form}}"
