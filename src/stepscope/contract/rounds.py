"""The order of variants that are measured in turn, for both sides."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def turned(number: int, variants: Sequence[T]) -> list[T]:
    """Return the order of a round: every second one goes backwards, and the pair after it begins one further on.

    >>> [turned(number, ["a", "b"]) for number in range(4)]
    [['a', 'b'], ['b', 'a'], ['b', 'a'], ['a', 'b']]
    """
    at = number // 2 % len(variants)
    order = [*variants[at:], *variants[:at]]
    return order if number % 2 == 0 else order[::-1]
