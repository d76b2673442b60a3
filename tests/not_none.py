"""A value that has to be there, for the type checker and for the test."""

from typing import TypeVar

T = TypeVar("T")


def not_none(found: T | None) -> T:
    assert found is not None
    return found
