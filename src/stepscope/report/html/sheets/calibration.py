"""The page of a calibration: what every collective takes by size, measured and fitted, and how far the fit is off."""

import numpy as np

from stepscope.cost.collectives.calibration import Calibration
from stepscope.cost.collectives.curve import Curve
from stepscope.report.html.sheets.sheet import Axis, Card, Line, Lines, Section, Sheet, table_of
from stepscope.units import NS_PER_MS, printable

_SAMPLES = 40
_SHOWN = ("source", "backend", "device", "machine", "torch", "created")


def calibration_sheet(calibration: Calibration) -> Sheet:
    """Return the page of a calibration."""
    ops = list(dict.fromkeys(curve.op for curve in calibration.curves))
    about = calibration.about
    return Sheet(
        title="Collectives of this machine",
        facts=tuple(printable(str(about[name])) for name in _SHOWN if about.get(name)),
        cards=_cards(calibration),
        sections=(_fits(calibration), *(_operation(calibration, op) for op in ops)),
        notes=(
            "Times are of the full buffer of the operation, without waiting for other ranks.",
            *(curve.doubt for curve in calibration.curves if curve.doubt),
        ),
    )


def _cards(calibration: Calibration) -> tuple[Card, ...]:
    curves = calibration.curves
    rates = [rate for curve in curves if (rate := _rate(curve)) is not None]
    errors = [curve.left_out_error for curve in curves if curve.left_out_error is not None]
    return (
        Card("Curves", len(curves), "count", "one per operation and world size"),
        Card(
            "Smallest latency",
            min((_latency_ms(curve) for curve in curves), default=None),
            "ms",
            "before the first byte",
        ),
        Card("Highest rate", max(rates, default=None), "gb_per_s", "bytes of the buffer over time"),
        Card(
            "Typical error", 100 * float(np.median(errors)) if errors else None, "pct", "on sizes left out of the fit"
        ),
    )


def _fits(calibration: Calibration) -> Section:
    titles = (
        ("operation", "text"),
        ("ranks", "count"),
        ("latency", "ms"),
        ("rate", "gb_per_s"),
        ("R²", "number"),
        ("mean error", "pct"),
        ("largest error", "pct"),
        ("on sizes left out", "pct"),
        ("points", "count"),
    )
    rows = [
        (
            curve.op,
            curve.world_size,
            _latency_ms(curve),
            _rate(curve),
            round(curve.r2, 4),
            100 * curve.mean_error,
            100 * curve.max_error,
            None if curve.left_out_error is None else 100 * curve.left_out_error,
            len(curve.points),
        )
        for curve in calibration.curves
    ]
    return Section("fits", "What was fitted", (), None, table_of(titles, rows))


def _operation(calibration: Calibration, op: str) -> Section:
    curves = [curve for curve in calibration.curves if curve.op == op]
    lines = [line for place, curve in enumerate(curves) for line in _lines(calibration, curve, place)]
    chart = Lines(
        tuple(lines), Axis("size", "bytes", log=True), Axis("time", "ms", log=True), f"Time of {op} over its size"
    )
    said = "Dots were measured, lines are fitted; 90 % of measurements lie in the band."
    rows = [
        (curve.world_size, size, time / NS_PER_MS, size / time if time else None)
        for curve in curves
        for size, time in curve.points
    ]
    titles = (("ranks", "count"), ("size", "bytes"), ("time", "ms"), ("rate", "gb_per_s"))
    return Section(f"op-{op.replace('_', '-')}", op.replace("_", " "), (said,), chart, table_of(titles, rows))


def _lines(calibration: Calibration, curve: Curve, place: int) -> list[Line]:
    """Return the measured points and the fitted curve with its band."""
    first, last = curve.points[0][0], curve.points[-1][0]
    sizes = np.geomspace(first, max(last, first + 1), _SAMPLES).tolist()
    found = [calibration.predict(curve.op, size_bytes=size, world_size=curve.world_size) for size in sizes]
    fitted = tuple(
        (size, e.time_ns / NS_PER_MS, e.low_ns / NS_PER_MS, e.high_ns / NS_PER_MS)
        for size, e in zip(sizes, found, strict=True)
    )
    measured = tuple((float(size), time / NS_PER_MS) for size, time in curve.points)
    name = f"{curve.world_size} ranks"
    return [Line(name, measured, colour=place), Line(f"{name}, fitted", fitted, fitted=True, colour=place)]


def _latency_ms(curve: Curve) -> float:
    return float(curve.pieces.lines()[0].alpha_ns) / NS_PER_MS


def _rate(curve: Curve) -> float | None:
    per_byte = curve.pieces.lines()[-1].ns_per_byte
    return 1 / per_byte if per_byte else None
