"""One question asked of several at once: answers in order, with any number of threads."""

import threading

import pytest

from stepscope.run.load import side_by_side


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_answers_come_in_the_order_of_what_was_given(jobs: int) -> None:
    assert side_by_side(jobs, lambda a, b: (a, b), range(7), "abcdefg") == tuple(zip(range(7), "abcdefg", strict=True))


def test_as_many_threads_answer_as_are_allowed() -> None:
    both = threading.Barrier(2, timeout=60)  # passes once two ask at the same time
    assert side_by_side(2, lambda _: both.wait() >= 0, range(2)) == (True, True)


def test_what_the_first_of_them_raises_is_raised() -> None:
    def answer(number: int) -> int:
        if number in (2, 4):
            raise ValueError(str(number))
        return number

    with pytest.raises(ValueError, match="2"):
        side_by_side(2, answer, range(6))
