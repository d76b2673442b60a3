"""The page of one run: everything that it shows, from the account."""

from typing import Any

from stepscope.analyze.account import Account
from stepscope.cost.collectives.calibration import Calibration
from stepscope.diagnose.findings import Diagnosis
from stepscope.document.plain_values import plain
from stepscope.document.report import report_json
from stepscope.report.html.calibration_curves import calibration_curves
from stepscope.report.html.code_trees import code_trees_of
from stepscope.report.html.data import ReportData
from stepscope.report.html.grid import grid_of
from stepscope.report.html.one_step import slices_of, slices_of_other_steps
from stepscope.report.html.page import page_of
from stepscope.report.html.trust import trust_lines
from stepscope.report.pictures.all_pictures import pictures_of


def render_html(account: Account, diagnosis: Diagnosis, *, calibration: Calibration | None = None) -> str:
    """Return the report as the text of one HTML file, with a picture of the calibration where one is given."""
    return page_of(report_data(account, diagnosis, calibration=calibration))


def report_data(account: Account, diagnosis: Diagnosis, *, calibration: Calibration | None = None) -> ReportData:
    """Return what the page of a run shows."""
    report = plain(report_json(account, diagnosis))  # a page cannot read NaN
    trust = trust_lines(report)
    del report["run"]["sources"]  # paths of whoever made the page: not for whoever reads it
    for rank in report["ranks"]:
        del rank["step_ms"]  # the grid holds it
    _without_what_pictures_hold(report)
    grid = grid_of(account)
    wanted = [r for f in diagnosis.findings for r in f.ranks] + [s.rank for s in account.stragglers]
    slices = slices_of(account, grid, wanted=wanted)
    return ReportData(
        report=report,
        grid=grid,
        slices=slices,
        more_slices=slices_of_other_steps(account, grid, slices, wanted=wanted),
        trust=trust,
        pictures=plain(pictures_of(account, diagnosis, calibration)),
        code_trees=code_trees_of(account),
        calibration=plain(calibration_curves(account, calibration)) if calibration else None,
    )


def _without_what_pictures_hold(report: dict[str, Any]) -> None:
    """Take out of the report's JSON what the page shows as pictures only, of every rank but the fullest."""
    for unused in ("memory_steps", "memory_edges"):
        del report[unused]
    for rank in (report["memory"] or {"ranks": []})["ranks"]:
        if rank["rank"] != report["memory"]["fullest_rank"]:
            rank["timeline"] = rank["peak"] = None
