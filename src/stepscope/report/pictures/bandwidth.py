"""What bandwidth did each group's collectives reach, and what does this machine's calibration say they could?"""

from collections.abc import Sequence

from stepscope.analyze.ranks.collectives import CollectiveRow
from stepscope.contract.collectives import bus_factor
from stepscope.cost.collectives.calibration import Calibration
from stepscope.errors import UsageError
from stepscope.report.pictures.axes import Scale, bytes_text, digits, round_ticks
from stepscope.report.pictures.drawing import Drawing, Shape, polyline, rect, words

WIDTH, LINE, LEFT, RIGHT = 560, 26, 190, 470
MAX_ROWS = 14
_UNITS = (("GB/s", 1.0, 0.1), ("MB/s", 1e3, 1e-4), ("kB/s", 1e6, 0.0))


def bandwidth_drawing(rows: Sequence[CollectiveRow], calibration: Calibration | None) -> Drawing | None:
    """Return bus bandwidth by operation and group, None where none is known."""
    known = [(r, r.busbw_gb_per_s) for r in rows if r.busbw_gb_per_s and r.size_bytes and r.count]
    if not known:
        return None
    known = sorted(known, key=lambda pair: -(pair[0].size_bytes or 0))[:MAX_ROWS]
    could = [_calibrated(calibration, row) for row, _ in known]
    most = max(*(bw for _, bw in known), *(c or 0 for c in could))
    unit, per = next((u, p) for u, p, least in _UNITS if most >= least)
    ticks = [tick / per for tick in round_ticks(most * per)]
    x = Scale(0, ticks[-1], LEFT, RIGHT)
    bottom = len(known) * LINE
    shapes: list[Shape] = []
    for tick in ticks:
        shapes.append(polyline([(x(tick), 0), (x(tick), bottom)], "line", width=1))
        shapes.append(words(x(tick), bottom + 16, f"{tick * per:g}", anchor="middle"))
    shapes.append(words((LEFT + RIGHT) / 2, bottom + 32, f"{unit} on the bus", anchor="middle"))
    table = []
    for k, ((row, bw), limit) in enumerate(zip(known, could, strict=True)):
        y, name = k * LINE, f"{row.op} · {row.group.desc or row.group.name}"
        size = bytes_text((row.size_bytes or 0) / row.count)
        share = f", {100 * bw / limit:.0f} % of the calibrated {digits(limit * per)}" if limit else ""
        said = (name, f"{digits(bw * per)} {unit}{share}", f"{row.count:,} of {size} each")
        shapes.append(words(LEFT - 8, y + 17, name if len(name) <= 28 else name[:27] + "…", anchor="end"))
        shapes.append(rect(LEFT, y + 5, x(bw) - LEFT, LINE - 10, "transfer", tip=said))
        if limit:
            shapes.append(rect(x(limit) - 1.5, y + 1, 3, LINE - 2, "text", tip=said))
        shapes.append(words(max(x(bw), x(limit or 0)) + 6, y + 17, f"{digits(bw * per)}"))
        table.append((name, size, f"{digits(bw * per)}", f"{digits(limit * per)}" if limit else "unknown"))
    calibrated = any(could)
    note = "Lines are what this machine's calibration measured for the mean size." if calibrated else (
        "Without a calibration of this machine there is no line to hold them against (stepscope calibrate)."
    )  # fmt: skip
    return Drawing(
        title="Bandwidth of each group's collectives", width=WIDTH, height=bottom + 38, shapes=tuple(shapes),
        label=f"Bus bandwidth of {len(known)} operations, at most {digits(most * per)} {unit}",
        legend=(("transfer", "in this run, without waiting"), *((("text", "calibrated"),) if calibrated else ())),
        notes=(note,), head=("collective", "mean size", unit, f"calibrated {unit}"), rows=tuple(table),
    )  # fmt: skip


def _calibrated(calibration: Calibration | None, row: CollectiveRow) -> float | None:
    """Return the bus bandwidth that the calibration gives for a row's mean size, None where it has none."""
    ranks = row.group.size
    if calibration is None or not ranks or ranks < 2:
        return None
    size = (row.size_bytes or 0) / row.count
    try:
        took = calibration.predict(row.op, size_bytes=size, world_size=ranks).time_ns
    except UsageError:
        return None
    return size * bus_factor(row.op, ranks) / took if took else None
