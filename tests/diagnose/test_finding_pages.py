"""Every finding id has a page, and kinds have only these ids."""

from pathlib import Path

import pytest

from stepscope.diagnose.finding import FAULTS, FINDING_IDS
from stepscope.diagnose.findings import KINDS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("finding", FINDING_IDS)
def test_every_finding_has_a_page_with_an_example(finding: str) -> None:
    text = (ROOT / "docs" / "findings" / f"{finding}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {finding}\n")
    for heading in ("## What it is", "## How it is recognised", "## How to fix it", "## Example"):
        assert heading in text
    assert len(text.split("## Example")[1]) > 150, "an example with numbers"


def test_kinds_have_only_ids_that_there_are() -> None:
    assert {kind.id for kind in KINDS} == set(FAULTS)


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "findings" / "README.md").read_text(encoding="utf-8")
    assert all(f"({finding}.md)" in index for finding in FINDING_IDS)
