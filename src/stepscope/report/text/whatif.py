"""A what-if on the terminal and as JSON."""

from typing import Any

from rich.console import Console
from rich.text import Text

from stepscope.contract.run_folder import SCHEMA
from stepscope.report.terminal import name_text, plain_table
from stepscope.units import NS_PER_MS, ms
from stepscope.whatif.settings import Answer

_MAX_RANKS = 16
#: share of the step by which a replay may be off without a remark
_FAR = 0.01


def whatif_json(name: str, answer: Answer) -> dict[str, Any]:
    """Return the answer as a JSON object."""
    found = answer.prediction
    return {
        "schema": SCHEMA,
        "run": name,
        "set": list(found.changes),
        "measured_ms": None if answer.measured_ns is None else ms(answer.measured_ns),
        "baseline_ms": ms(found.baseline_ns),
        "predicted_ms": ms(found.step_ns),
        "predicted_low_ms": ms(found.low_ns),
        "predicted_high_ms": ms(found.high_ns),
        "saving_ms": ms(found.baseline_ns - found.step_ns),
        "saving_pct": round(answer.saving_pct, 3),
        "energy": None
        if answer.energy_j is None
        else dict(zip(("j_per_step", "predicted_j_per_step"), answer.energy_j, strict=True)),
        "ranks": [{"rank": rank, "predicted_ms": ms(ns)} for rank, ns in found.rank_step_ns.items()],
        "notes": list(answer.notes),
    }


def print_whatif(name: str, answer: Answer, out: Console) -> None:
    """Print the step as it was and as predicted, then each rank.

    Predictions are the measured step less the saving, also where the replay of the recorded step is a little off it.
    """
    found = answer.prediction
    shift_ns = 0.0 if answer.measured_ns is None else answer.measured_ns - found.baseline_ns
    out.print(name_text(name, style="bold"))
    out.print(Text(str(answer)))
    table = plain_table(out, "step", "ms", "at least", "at most")
    if answer.measured_ns is not None:
        table.add_row("measured", _ms(answer.measured_ns), "", "")
    ends = [_ms(max(0.0, ns + shift_ns)) for ns in (found.step_ns, found.low_ns, found.high_ns)]
    table.add_row("predicted", *ends, style="bold")
    out.print(table)
    if answer.energy_j is not None:
        before, after = answer.energy_j
        out.print(f"energy per step: {before:.3g} J, predicted {after:.3g} J ({100 * (after / before - 1):+.0f} %)")
    if abs(shift_ns) >= _FAR * found.baseline_ns:
        out.print(
            f"replay of the recorded step: {_ms(found.baseline_ns)} ms; its difference to the measured step is added"
        )
    _ranks(answer, shift_ns, out)
    for note in answer.notes:
        out.print(Text(f"! {note}", style="yellow"))


def _ranks(answer: Answer, shift_ns: float, out: Console) -> None:
    by_rank = list(answer.prediction.rank_step_ns.items())
    if len(by_rank) < 2:
        return
    shown = ", ".join(f"rank {rank} {_ms(max(0.0, ns + shift_ns))}" for rank, ns in by_rank[:_MAX_RANKS])
    more = f" and {len(by_rank) - _MAX_RANKS} more (--json has them all)" if len(by_rank) > _MAX_RANKS else ""
    out.print(f"predicted ms per rank: {shown}{more}")


def _ms(time_ns: float) -> str:
    return f"{time_ns / NS_PER_MS:.2f}"
