"""What becomes of a finding: the same words for comparisons and investigations."""

import pytest

from stepscope.compare.runs import CAME, FIXED, GREW, MOSTLY_GONE, STAYED, WENT, fate, savings_by_key


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        (None, 3.0, CAME),
        (3.0, None, WENT),
        (10.0, 4.9, MOSTLY_GONE),
        (10.0, 5.1, STAYED),
        (10.0, 19.9, STAYED),
        (10.0, 20.1, GREW),
        (0.0, 0.0, STAYED),
    ],
)
def test_what_became_of_a_finding(before: float | None, after: float | None, what: str) -> None:
    assert fate(before, after) == what


def test_a_finding_counts_as_fixed_where_less_than_half_is_left() -> None:
    assert fate(10.0, 4.0) in FIXED and fate(10.0, 6.0) not in FIXED


def test_findings_of_one_fault_are_taken_together() -> None:
    stalls = (("host-stall", ()), 2.0), (("host-stall", ()), 3.0), (("straggler", (1,)), 4.0)
    assert savings_by_key(stalls) == {("host-stall", ()): 5.0, ("straggler", (1,)): 4.0}
