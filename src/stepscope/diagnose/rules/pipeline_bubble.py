"""`pipeline-bubble`: too few micro-batches for the number of stages."""

from stepscope.analyze.account import Account
from stepscope.diagnose.counted_places import schedule_lines
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.setting_of_finding import MORE_MICROBATCHES

MICROBATCHES = "micro-batches"


def pipeline_bubble(account: Account) -> list[Candidate]:
    """Return the bubble of a pipeline, with four times the micro-batches as the fix."""
    view = account.views.pipeline
    if view is None or not view.microbatches or account.step is None:
        return []
    chunks = view.chunks or 1
    now = _step_in_microbatches(view.stages, view.microbatches, chunks)
    then = _step_in_microbatches(view.stages, MORE_MICROBATCHES * view.microbatches, chunks) / MORE_MICROBATCHES
    # Only what the pipeline does shrinks: its work and its bubble, not the optimizer or other idle time.
    bubble_ns = view.bubble_pct / 100 * account.step.step_ns
    ideal_share = (now - view.microbatches) / now
    avoidable = (now - then) / (now - view.microbatches) if ideal_share else 0.0
    return [
        Candidate(
            id="pipeline-bubble",
            title=f"{view.microbatches} micro-batches leave {view.stages} stages idle {view.bubble_pct:.0f} % of the step",
            cause=f"stages wait for the first and the last micro-batch: (p - 1)/(m + p - 1) = {100 * ideal_share:.0f} %",
            remedy="Use more, smaller micro-batches, an interleaved schedule (several chunks per rank) or a zero-bubble one. "
            "The saving is of four times the micro-batches at the same total work.",
            fixed_saving_ns=avoidable * bubble_ns,
            cost_ns=bubble_ns,
            evidence=(
                Evidence("measured bubble", round(view.bubble_pct, 2), "% of the step", "mean rank"),
                Evidence(
                    "bubble with equal stages, by (p - 1)/(m + p - 1)", round(100 * ideal_share, 2), "% of the step"
                ),
                Evidence(MICROBATCHES, view.microbatches),
                Evidence("stages", view.stages),
            ),
            where=schedule_lines(account),
            doubt=0.3,
        )
    ]


def _step_in_microbatches(stages: int, microbatches: int, chunks: int) -> float:
    """Return a step's length in units of one micro-batch's work: m + (p - 1)/v."""
    return microbatches + (stages - 1) / chunks
