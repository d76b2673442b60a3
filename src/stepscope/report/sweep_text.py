"""A sweep on the terminal: each variant against the first, whether results agree, and the advice."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from stepscope.analyze.sweep_verdict import Judged, Verdict
from stepscope.report.terminal import name_text, plain_table
from stepscope.units import printable


def print_sweep(document: Mapping[str, Any], verdict: Verdict, out: Console) -> None:
    """Print the question, the variants, and what to do."""
    sweep = document["sweep"]
    out.print(f"{sweep['name']}: {sweep['question']}", markup=False)
    with_mfu = any(v.mfu is not None for v in verdict.variants)
    columns = ["", "median ms", "against the first", "peak GB", "first step s", "gradient", "loss", "agrees"]
    table = plain_table(out, *columns, *(["MFU"] if with_mfu else []))
    for variant in (v for v in verdict.variants if v.step_ms is not None):
        cells = _cells(variant, first=variant.gain is not None and variant.name == _first(verdict))
        table.add_row(name_text(variant.name), *cells, *([_number(_percent(variant.mfu), ".1f")] if with_mfu else []))
    out.print(table)
    out.print(_method(sweep), markup=False)
    for variant in (v for v in verdict.variants if v.status != "measured"):
        out.print(f"{variant.name}: {variant.status}: {printable(variant.reason or '', width=300)}", markup=False)
    if "fitting" in sweep:
        out.print(_fitting(sweep["fitting"]), markup=False)
    if verdict.mfu_reason:
        out.print(verdict.mfu_reason, markup=False)
    for line in verdict.advice:
        out.print(f"-> {line}", markup=False)


def _first(verdict: Verdict) -> str | None:
    return next((v.name for v in verdict.variants if v.step_ms is not None), None)


def _cells(variant: Judged, *, first: bool) -> list[str]:
    found = variant.agreement
    return [
        _number(variant.step_ms, ".2f"),
        "1" if first else _gain(variant),
        _number(variant.peak_memory_gb, ".2f"),
        _number(None if variant.first_step_ms is None else variant.first_step_ms / 1e3, ".2f"),
        _number(found.gradient_error if found else None, ".1e"),
        _number(found.loss_error if found else None, ".1e"),
        {True: "yes", False: "NO", None: "?"}[found.agrees if found else None],
    ]


def _gain(variant: Judged) -> str:
    if variant.gain is None:
        return "?"
    text = f"{variant.gain.speedup:.2f} x [{variant.gain.low:.2f}, {variant.gain.high:.2f}]"
    return f"{text} (noise)" if variant.gain.equal else text


def _method(sweep: Mapping[str, Any]) -> str:
    tolerance = sweep["tolerance"]
    other = "the same batch in two halves" if sweep["reference"] == "halves" else "the first variant"
    bounds = f"gradient {tolerance['gradient']:.1e}, loss {tolerance['loss']:.1e}: {tolerance['why']}"
    own = [
        f"{v['name']} {v['tolerance']['gradient']:.1e} and {v['tolerance']['loss']:.1e}"
        for v in sweep["variants"]
        if v.get("tolerance")
    ]
    more = f"; {', '.join(own)}" if own else ""
    return f"speed is per sample; results agree with {other} within ({bounds}{more}), relative"


def _fitting(found: Mapping[str, Any]) -> str:
    limit = found["memory_limit_bytes"]
    where = f" in {limit / 1e9:.2f} GB" if limit else ""
    failed = [int(size) for size in found["did_not_fit"]]
    return f"largest batch that fits{where}: {found['largest']}" + (f"; {min(failed)} does not" if failed else "")


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _number(value: float | None, form: str) -> str:
    return "?" if value is None else f"{value:{form}}"
