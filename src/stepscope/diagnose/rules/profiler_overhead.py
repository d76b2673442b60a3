"""`profiler-overhead`: the trace itself is distorted; says how far to trust it."""

from stepscope.analyze.account import Account
from stepscope.diagnose.counted_places import recorded_event_places
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms

_MUCH_PCT = 20.0


def profiler_overhead(account: Account) -> list[Candidate]:
    """Return how much longer a step was while it was recorded, where that is a lot."""
    step = account.step
    if step is None or step.overhead_pct is None or step.overhead_pct < _MUCH_PCT:
        return []
    factor = account.replay.host_factor if account.replay else None
    return [
        Candidate(
            id="profiler-overhead",
            title=f"Recording made the step {step.overhead_pct:.0f} % longer",
            cause="the profiler slows the host; launch gaps in the trace are partly its own",
            remedy="All numbers here have it taken out; record fewer steps without shapes and stacks to see less of it.",
            fixed_saving_ns=0.0,
            cost_ns=step.profiled_ns - (step.ordinary_ns or step.profiled_ns),
            evidence=(
                Evidence("step while profiled", host_ms(step.profiled_ns), "ms"),
                Evidence("step without the profiler", host_ms(step.ordinary_ns or 0.0), "ms"),
                Evidence("host time left without the profiler", round(factor, 2) if factor else "unknown", "share"),
            ),
            where=recorded_event_places(account),
            always=True,
            sureness=0.95,
        )
    ]
