"""A finished run sent to W&B or MLflow: its curves, the same as TensorBoard's, and the report as an artefact."""

import tempfile
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.diagnose.findings import diagnose
from stepscope.record.sinks import sink_from
from stepscope.report.html.page import render_html
from stepscope.report.tensorboard import scalars_of

_REPORT = "report.html"


def send_run(account: Account, kind: str, name: str) -> dict[str, Any]:
    """Return what was sent: scalars by step, in order, then the report."""
    by_step: dict[int, dict[str, float]] = {}
    for scalar in scalars_of(account):
        by_step.setdefault(scalar.step, {})[scalar.tag] = scalar.value
    page = render_html(account, diagnose(account)).encode()
    sink = sink_from(f"{kind}:{name}")
    try:
        for step, values in sorted(by_step.items()):
            sink.scalars(step, values)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, _REPORT).write_bytes(page)
            sink.artefact(Path(folder, _REPORT))
    finally:
        sink.close()
    return {
        "what": f"sent to {kind}",
        "path": name,
        "size_bytes": len(page),
        "files": 1,
        "rows": sum(map(len, by_step.values())),
        "warnings": list(account.run.warnings),
    }
