"""What a comparison needs of one run, from its account and findings or from its step logs."""

from stepscope.analyze.account import Account
from stepscope.compare.code_lines import Lines, OwnedLine, lines_by_key
from stepscope.compare.sampled_run import light_samples, run_samples
from stepscope.compare.sides import ComparedRun
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.code import CodeRow, code_view
from stepscope.document.light import light_json
from stepscope.document.report import report_json
from stepscope.run.light import LightRun
from stepscope.run.load import incomplete


def compared_run(account: Account, diagnosis: Diagnosis) -> ComparedRun:
    """Return what a comparison needs of a run."""
    run = account.run
    report = report_json(account, diagnosis)
    return ComparedRun(run_samples(account), report, code_lines(account), tuple(incomplete(run)), bool(run.unreadable))


def compared_light_run(run: LightRun) -> ComparedRun:
    """Return what a comparison needs of a run without traces: its steps, and the report of its step logs."""
    return ComparedRun(light_samples(run), light_json(run), None, (), False)


def code_lines(account: Account) -> Lines | None:
    """Return the lines of a run by what tells them apart, None where nobody recorded owners."""
    view = code_view(account)
    if view is None:
        return None
    return lines_by_key(line for row in reversed(view.lines) if (line := _owned(row)).own_ns > 0)


def _owned(row: CodeRow) -> OwnedLine:
    own_ns = max(row.own_host_ns, row.own_device_ns)
    return OwnedLine(row.file, row.line, row.function, row.module, row.source, own_ns)
