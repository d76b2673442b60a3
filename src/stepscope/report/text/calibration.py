"""A calibration as a table on the terminal."""

from rich.console import Console

from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.curve import Curve
from stepscope.report.fit import print_fitting
from stepscope.report.text.terminal import plain_table
from stepscope.units import NS_PER_US, readable_bytes

_LEFT_OUT_FIRST = ("pieces", "R2", "max err", "left-out err", "sizes")


def print_calibration(calibration: Calibration, out: Console) -> None:
    """Print one row per operation and world size."""
    columns = (
        "operation",
        "ranks",
        "sizes",
        "latency us",
        "GB/s",
        "pieces",
        "R2",
        "mean err",
        "max err",
        "left-out err",
    )
    table = plain_table(out, *columns)
    for curve in calibration.curves:
        table.add_row(*_cells(curve))
    print_fitting(table, out, least_needed=_LEFT_OUT_FIRST)
    out.print("errors are relative; left-out: each size predicted from the others. R2 of log time.")
    for curve in calibration.curves:
        if curve.doubt:
            out.print(curve.doubt)


def _cells(curve: Curve) -> list[str]:
    first, last = curve.pieces.lines()[0], curve.pieces.lines()[-1]
    sizes = f"{readable_bytes(curve.points[0][0])} - {readable_bytes(curve.points[-1][0])}"
    left_out = "?" if curve.left_out_error is None else f"{100 * curve.left_out_error:.1f} %"
    return [
        curve.op,
        str(curve.world_size),
        sizes,
        f"{first.alpha_ns / NS_PER_US:.1f}",
        f"{1 / last.ns_per_byte:.2f}" if last.ns_per_byte else "-",
        str(len(curve.pieces.lines())),
        f"{curve.r2:.4f}",
        f"{100 * curve.mean_error:.1f} %",
        f"{100 * curve.max_error:.1f} %",
        left_out,
    ]
