"""One vocabulary and one set of factors for both sides."""

import pytest

from stepscope.contract.collectives import bus_factor, element_bytes, op_name


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


def test_one_rank_moves_nothing() -> None:
    assert bus_factor("all_reduce", 1) == 0


def test_a_barrier_that_runs_as_an_all_reduce_is_a_barrier() -> None:
    assert op_name("nccl:all_reduce_barrier") == "barrier"


@pytest.mark.parametrize(
    ("names", "size"), [(("BFloat16", "c10::BFloat16", "UInt16"), 2), (("UInt64", "Long", "long int"), 8)]
)
def test_types_are_known_by_the_names_of_both_sides(names: tuple[str, ...], size: int) -> None:
    assert {element_bytes(name) for name in names} == {size}
