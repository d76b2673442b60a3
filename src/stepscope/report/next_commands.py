"""What to run next, given what was found?"""

import shlex
from collections.abc import Sequence

from stepscope.diagnose.finding import Finding
from stepscope.diagnose.findings import Diagnosis
from stepscope.diagnose.rules.pipeline_bubble import MICROBATCHES
from stepscope.diagnose.setting_of_finding import setting_of_finding
from stepscope.units import printable

PAGE = "report.html"


def next_commands(
    diagnosis: Diagnosis, given: Sequence[str], *, has_page: bool = False, has_lines: bool = False
) -> list[tuple[str, str]]:
    """Return command lines for the run and options that were `given` on one, and what each tells.

    `has_page`: there is a page from before, which only --force overwrites. `has_lines`: it is known which lines of the
    user's code cost what.
    """
    run = " ".join(shlex.quote(printable(word)) for word in given)
    lines = [
        (f"stepscope view {run}", "report, tables and timeline in the browser"),
        (f"stepscope report {run} --html {PAGE}{' --force' * has_page}", "the whole report as one file"),
    ]
    first = diagnosis.worth[0] if diagnosis.worth else None
    options = () if first is None else _what_if(first)
    if options:
        words = " ".join(shlex.quote(printable(word)) for word in options)
        lines.insert(0, (f"stepscope whatif {run} {words}", "the first fix, alone or with others"))
    elif has_lines if first is None else first.where:
        lines.insert(0, (f"stepscope code {run}", "source lines with what they cost"))
    return lines


def _what_if(finding: Finding) -> tuple[str, ...]:
    """Return the options of a what-if that gives the finding's saving; none where there is none."""
    if finding.what_if is not None:
        return finding.what_if
    known = [e.value for e in finding.evidence if e.what == MICROBATCHES and isinstance(e.value, int)]
    setting = setting_of_finding(finding.id, microbatches=known[0] if known else None)
    return () if setting is None else ("--set", setting)
