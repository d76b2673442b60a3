"""The picture of growth: what grows in proportion follows its dashed line, and names are text, never markup."""

import re
import xml.etree.ElementTree as ElementTree

from stepscope.report.svg import Growth, growth_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_points_in_proportion_lie_on_the_dashed_line() -> None:
    panel = Growth(of="ranks", sizes=[1, 2, 4, 8], costs={"report": [0.5, 1.0, 2.0, 4.0]}, unit="s")
    tree = ElementTree.fromstring(growth_svg([panel]))
    (dashed,) = [line for line in tree.iter(f"{SVG}line") if line.get("stroke-dasharray")]
    x1, y1, x2, y2 = (float(dashed.get(name) or "nan") for name in ("x1", "y1", "x2", "y2"))
    circles = [(float(c.get("cx") or "nan"), float(c.get("cy") or "nan")) for c in tree.iter(f"{SVG}circle")]
    assert len(circles) == 4
    for x, y in circles:
        assert abs(y - (y1 + (y2 - y1) * (x - x1) / (x2 - x1))) < 0.2


def test_faster_growth_rises_above_the_line() -> None:
    panel = Growth(of="ranks", sizes=[1, 10], costs={"report": [1.0, 90.0]}, unit="s")
    (path,) = re.findall(r'<path d="M([\d.]+),([\d.]+)L([\d.]+),([\d.]+)"', growth_svg([panel]))
    (dashed,) = re.findall(
        r'<line x1="[\d.]+" y1="[\d.]+" x2="([\d.]+)" y2="([\d.]+)" stroke="[^"]+" stroke-op', growth_svg([panel])
    )
    assert float(path[3]) < float(dashed[1])  # up is less


def test_names_are_escaped_and_sizes_short() -> None:
    text = growth_svg([Growth(of="<events>", sizes=[300_000, 600_000], costs={"a & b": [1, 2]}, unit="s")])
    assert "&lt;events&gt;" in text
    assert "a &amp; b" in text
    assert ">300k<" in text
