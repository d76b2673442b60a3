"""One vocabulary and one set of factors for both sides."""

import pytest

from stepscope.contract.collectives import bus_factor


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.5),  # 2 (P - 1) / P
        ("all_gather", 0.75),  # (P - 1) / P
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("send", 1.0),
    ],
)
def test_bus_bandwidth_of_four_ranks(operation: str, factor: float) -> None:
    assert bus_factor(operation, 4) == factor
