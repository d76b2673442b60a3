"""What to run next, given what was found?"""

import shlex
from collections.abc import Sequence

from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.rules.pipeline_bubble import MICROBATCHES
from stepscope.diagnose.setting_of_finding import setting_of_finding
from stepscope.units import printable


def next_commands(diagnosis: Diagnosis, given: Sequence[str]) -> list[tuple[str, str]]:
    """Return command lines for the run and options that were `given` on one, and what each tells."""
    run = " ".join(shlex.quote(printable(word)) for word in given)
    lines = [
        (f"stepscope view {run}", "report, tables and timeline in the browser"),
        (f"stepscope report {run} --html report.html", "the whole report as one file"),
    ]
    setting = _setting(diagnosis.worth[0]) if diagnosis.worth else None
    if setting is not None:
        lines.insert(0, (f"stepscope whatif {run} --set {setting}", "the first fix, alone or with others"))
    return lines


def _setting(finding: Finding) -> str | None:
    known = [e.value for e in finding.evidence if e.what == MICROBATCHES and isinstance(e.value, int)]
    return setting_of_finding(finding.id, microbatches=known[0] if known else None)
