"""Pictures of growth: proportional growth follows its dashed line, and names are text, never markup."""

import xml.etree.ElementTree as ElementTree

from stepscope.report.svg import Growth, growth_svg

SVG = "{http://www.w3.org/2000/svg}"


def drawn(costs: list[float], sizes: list[float]) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Return the points, and the ends of the dashed line."""
    tree = ElementTree.fromstring(growth_svg([Growth(of="ranks", sizes=sizes, costs={"report": costs}, unit="s")]))
    (dashed,) = [line for line in tree.iter(f"{SVG}polyline") if line.get("stroke-dasharray")]
    ends = [(float(x), float(y)) for x, y in (p.split(",") for p in (dashed.get("points") or "").split())]
    return [(float(c.get("cx") or "nan"), float(c.get("cy") or "nan")) for c in tree.iter(f"{SVG}circle")], ends


def test_points_in_proportion_lie_on_the_dashed_line() -> None:
    circles, ((x1, y1), (x2, y2)) = drawn([0.5, 1.0, 2.0, 4.0], [1, 2, 4, 8])
    assert len(circles) == 4
    for x, y in circles:
        assert abs(y - (y1 + (y2 - y1) * (x - x1) / (x2 - x1))) < 0.2


def test_faster_growth_rises_above_the_line() -> None:
    circles, ends = drawn([1.0, 90.0], [1, 10])
    assert circles[-1][1] < ends[-1][1]  # up is less


def test_names_are_escaped_and_sizes_short() -> None:
    text = growth_svg([Growth(of="<events>", sizes=[300_000, 600_000], costs={"a & b": [1, 2]}, unit="s")])
    assert "&lt;events&gt;" in text
    assert "a &amp; b" in text
    assert ">300k<" in text
