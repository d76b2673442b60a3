"""Rows of several blocks as one table: each number as it stands in the file, in as few bits as the column takes."""

import numpy as np
import pytest

from stepscope.trace.budget import Budget
from stepscope.trace.read import Columns, Strings
from stepscope.trace.scanner.scanner import Rows
from stepscope.trace.table import ARGS, DENSE

_CORRELATION = next(i for i, column in enumerate(ARGS) if column.name == "correlation")


def rows_with(numbers: list[int]) -> Rows:
    """Return as many rows, each with one of the numbers as its correlation id."""
    dense = [np.zeros(len(numbers), column.dtype) for column in DENSE]
    where = np.arange(len(numbers), dtype=np.uint32)
    return Rows(dense, {_CORRELATION: (where, np.array(numbers, np.int64))}, 0)


@pytest.mark.parametrize(
    ("blocks", "dtype"),
    [
        ([[1, 2], [3]], np.int32),
        ([[-(2**31), 2**31 - 1], [-1]], np.int32),
        ([[1, 2], [2**31], [3]], np.int64),
        ([[-5], [-(2**31) - 1, 7]], np.int64),
        ([[2**63 - 1], [-(2**63)]], np.int64),
    ],
)
def test_numbers_take_64_bits_where_any_needs_them(blocks: list[list[int]], dtype: type) -> None:
    share = Budget(1).share()
    columns = Columns(100, share)
    for numbers in blocks:
        columns.append(rows_with(numbers), scanner=0, offset=0)
    strings = Strings([], share)
    strings.of.append(None)
    args, bad = columns.sparse(strings)
    assert args["correlation"].values.tolist() == [number for numbers in blocks for number in numbers]
    assert args["correlation"].values.dtype == dtype
    assert args["correlation"].rows.tolist() == list(range(sum(map(len, blocks))))
    assert bad == 0


@pytest.mark.parametrize(("last", "dtype"), [(2**31 - 1, np.int32), (2**31, np.int64), (2**40, np.int64)])
def test_offsets_take_64_bits_where_any_needs_them(last: int, dtype: type) -> None:
    share = Budget(1).share()
    columns = Columns(100, share)
    columns.append(rows_with([1, 2]), scanner=0, offset=5)
    columns.append(rows_with([3]), scanner=0, offset=last)
    columns.append(rows_with([4]), scanner=0, offset=last)
    strings = Strings([], share)
    strings.of.append(None)
    found = columns.dense(strings)["offset"]
    assert found.tolist() == [5, 5, last, last]
    assert found.dtype == dtype
