"""How fast is each kernel against what the chip can do at its arithmetic intensity?"""

from collections.abc import Sequence

from stepscope.analyze.kernels.kernels import Kernel
from stepscope.cost.chips.table import Chip
from stepscope.report.pictures.axes import Scale, left_axis, powers, time_text
from stepscope.report.pictures.drawing import Drawing, Shape, dot, polyline, words
from stepscope.units import NS_PER_MS

WIDTH, HEIGHT, LEFT, BASE, TOP = 560, 300, 66, 262, 26
MAX_KERNELS = 60
_COLOUR = {"compute-bound": "forward", "memory-bound": "transfer", "latency": "wait"}


def roofline_drawing(kernels: Sequence[Kernel], chip: Chip | None) -> Drawing | None:
    """Return the picture, None where no kernel's work is known or the chip is not."""
    known = [k for k in kernels if k.tflops and k.gb_per_s][:MAX_KERNELS]
    if not known or chip is None or not chip.memory_gb_per_s:
        return None
    used = [k.precision for k in known if k.precision]
    roofs = {p: chip.tflops[p] for p in dict.fromkeys(used) if p in chip.tflops} or dict(list(chip.tflops.items())[:1])
    if not roofs:
        return None
    points = [(_intensity(k), k) for k in known]
    ridge = max(roofs.values()) * 1e3 / chip.memory_gb_per_s
    across = powers(min(min(i for i, _ in points), ridge / 9), max(max(i for i, _ in points), ridge * 4))
    up = powers(max(min(k.tflops or 0 for k in known), 1e-3), max(*roofs.values(), *(k.tflops or 0 for k in known)))
    x = Scale(across[0], across[-1], LEFT, WIDTH - 12, log=True)
    y = Scale(up[0], up[-1], BASE, TOP, log=True)
    shapes = left_axis(up, y, x0=LEFT, x1=WIDTH - 8, text=lambda v: f"{v:g}")
    shapes += [words(x(v), BASE + 16, f"{v:g}", anchor="end" if v == across[-1] else "middle") for v in across]
    shapes += [words((LEFT + WIDTH) / 2, HEIGHT - 4, "FLOP per byte of the device's memory", anchor="middle")]
    shapes += _roofs(roofs, chip.memory_gb_per_s, x, y)
    most = max(k.total_ns for k in known)
    for intensity, k in sorted(points, key=lambda p: -p[1].total_ns):
        radius = 3 + 9 * (k.total_ns / most) ** 0.5
        shapes.append(
            dot(x(intensity), y(max(k.tflops or 0, up[0])), radius, _colour(k), tip=_tip(k, intensity), opacity=0.8)
        )
    measured = sum(k.measured_share > 0 for k in known)
    return Drawing(
        title="Roofline",
        width=WIDTH,
        height=HEIGHT,
        label=f"TFLOP/s of {len(known)} kernels by arithmetic intensity below the roof of {chip.name}",
        shapes=tuple(shapes),
        legend=tuple((colour, bound) for bound, colour in _COLOUR.items() if any(k.bound == bound for k in known)),
        notes=(
            f"TFLOP/s over FLOP per byte; a dot is a kernel, its area the time in it. {_source(measured, len(known))}",
            f"The roof is {chip.name}'s dense peak and {chip.memory_gb_per_s:,.0f} GB/s.",
        ),
        head=("kernel", "FLOP per byte", "TFLOP/s", "of the roof", "total", "from"),
        rows=tuple(_row(k, i, roofs, chip.memory_gb_per_s) for i, k in points),
    )


def _intensity(k: Kernel) -> float:
    return 1e3 * (k.tflops or 0.0) / (k.gb_per_s or 1.0)


def _colour(k: Kernel) -> str:
    return _COLOUR.get(k.bound or "", "unknown")


def _source(measured: int, num: int) -> str:
    if not measured:
        return "Modelled: FLOPs and the least bytes from recorded shapes; what really moved was not measured."
    return f"Bytes of {measured} of {num} kernels as Nsight Compute measured them; the others modelled from shapes."


def _roofs(roofs: dict[str, float], gb_per_s: float, x: Scale, y: Scale) -> list[Shape]:
    shapes = []
    for name, tflops in roofs.items():
        ridge = tflops * 1e3 / gb_per_s
        start = max(x.low, y.low * 1e3 / gb_per_s)
        line = [(start, start * gb_per_s / 1e3), (ridge, tflops), (x.high, tflops)]
        shapes.append(polyline([(x(i), y(t)) for i, t in line if i <= x.high], "quiet", width=1.5))
        shapes.append(words(x(x.high), y(tflops) - 5, f"{name} {tflops:,.0f} TFLOP/s", anchor="end"))
    return shapes


def _roof_at(k: Kernel, intensity: float, roofs: dict[str, float], gb_per_s: float) -> float:
    flat = roofs.get(k.precision or "", max(roofs.values()))
    return min(flat, intensity * gb_per_s / 1e3)


def _tip(k: Kernel, intensity: float) -> list[str]:
    source = "measured" if k.measured_share > 0 else "modelled from shapes"
    return [
        k.name,
        f"{k.tflops:,.1f} TFLOP/s, {intensity:,.1f} FLOP per byte ({source})",
        f"{time_text(k.total_ns / NS_PER_MS)} in {k.count:,.0f} launches, {k.bound or 'bound unknown'}",
    ]


def _row(k: Kernel, intensity: float, roofs: dict[str, float], gb_per_s: float) -> tuple[str, ...]:
    share = 100 * (k.tflops or 0) / _roof_at(k, intensity, roofs, gb_per_s)
    return (
        k.name, f"{intensity:,.1f}", f"{k.tflops:,.1f}", f"{share:.0f} %", time_text(k.total_ns / NS_PER_MS),
        "measured" if k.measured_share > 0 else "shapes",
    )  # fmt: skip
