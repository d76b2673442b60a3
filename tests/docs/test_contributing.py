"""The map of the house in CONTRIBUTING.md names every room, and every file it names is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stepscope"
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
HOUSE = PAGE.partition("## Structure")[2].partition("\n## ")[0]


def test_every_file_of_the_map_exists() -> None:
    rows = [line for line in HOUSE.splitlines() if line.startswith("|")]
    named = [name for row in rows for name in re.findall(r"`([\w./-]+/[\w./-]*)`", row)]
    assert len(named) > 15
    missing = [name for name in named if not (PACKAGE / name).exists() and not (ROOT / name).exists()]
    assert missing == []


def test_every_room_is_on_the_map() -> None:
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {room for room in rooms if f"{room}/" not in HOUSE} == set()
