"""What a serving engine did, a line per kind of step."""

from rich.console import Console

from stepscope.analyze.step.serving import ServedSteps, Serving
from stepscope.units import ms


def print_serving(serving: Serving | None, out: Console) -> None:
    """Print prefill and decode steps with their times and tokens; nothing for a job that served none."""
    if serving is None:
        return
    for kind in serving.kinds:
        out.print(_line(kind))
    if serving.generated_per_s:
        out.print(f"generated {serving.generated_per_s:,.0f} tokens/s")


def _line(kind: ServedSteps) -> str:
    steps = "1 step" if kind.steps == 1 else f"{kind.steps} steps"
    parts = [f"{kind.kind}: {steps} of {ms(kind.step_ns):.2f} ms"]
    if kind.requests_per_step is not None:
        parts.append(f"{kind.requests_per_step:,.0f} requests")
    if kind.tokens_per_step is not None:
        parts.append(f"{kind.tokens_per_step:,.0f} tokens")
    rate = "" if kind.tokens_per_s is None else f"; {kind.tokens_per_s:,.0f} tokens/s"
    return ", ".join(parts) + rate
