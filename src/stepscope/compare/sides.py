"""Two sides of a comparison, of one run or several each, and the document that says what differs between them."""

from collections.abc import Sequence
from typing import Any

from stepscope.compare.code_lines import Lines, line_changes
from stepscope.compare.conditions import Gate
from stepscope.compare.document import compare_json
from stepscope.compare.gates import judge_changes
from stepscope.compare.reports import compared
from stepscope.compare.runs import compare
from stepscope.compare.samples import RunSamples
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord


@dataclass(frozen=True, eq=False, repr=False)
class ComparedRun(ArrayRecord):
    """What a comparison keeps of one run: its trace is not."""

    samples: RunSamples
    report: dict[str, Any]
    lines: Lines | None
    """None where nobody recorded owners"""
    not_read: tuple[str, ...]
    """one line for each thing of the run that could not be read"""
    is_partial: bool
    """a rank could not be read"""


def comparison_document(
    a: Sequence[ComparedRun], b: Sequence[ComparedRun], *, gates: Sequence[Gate] = ()
) -> dict[str, Any]:
    """Return the comparison of two sides, each of one run or several, as the JSON document of `stepscope compare`."""
    samples = [[run.samples for run in side] for side in (a, b)]
    reports = [[run.report for run in side] for side in (a, b)]
    whole = compared(compare(samples[0], samples[1]), reports[0], reports[1])
    return compare_json(
        whole,
        samples[0],
        samples[1],
        verdicts=([r["verdict"] for r in reports[0]], [r["verdict"] for r in reports[1]]),
        code=line_changes([run.lines for run in a], [run.lines for run in b]),
        gates=judge_changes(gates, whole.metrics, reports[0], reports[1]),
    )
