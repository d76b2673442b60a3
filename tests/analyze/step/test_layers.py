from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepscope.analyze.layers import NOTHING, label_ns, painted
from stepscope.intervals import union

moments = st.integers(0, 60)
layer = st.lists(st.tuples(moments, moments), max_size=6)


def test_first_layer_is_on_top() -> None:
    t = painted([(3, union([0], [4])), (5, union([2], [6]))], [0, 9])
    assert list(zip(t.start.tolist(), t.end.tolist(), t.label.tolist(), strict=True)) == [
        (0, 2, 3), (2, 4, 3), (4, 6, 5), (6, 9, NOTHING),
    ]  # fmt: skip


@given(layers=st.lists(layer, max_size=4), cuts=st.sets(moments, min_size=2, max_size=5))
def test_each_instant_has_the_label_of_its_first_layer(layers: list[list[tuple[int, int]]], cuts: set[int]) -> None:
    sets = [(i, union([a for a, _ in x], [b for _, b in x])) for i, x in enumerate(layers)]
    edges = sorted(cuts)
    t = painted(sets, edges)
    truth = np.full(61, NOTHING)
    for i, x in reversed(list(enumerate(layers))):
        for a, b in x:
            truth[a:b] = i
    for start, end, label in zip(t.start, t.end, t.label, strict=True):
        assert (truth[start:end] == label).all()
    assert (t.start[1:] == t.end[:-1]).all() and t.start[0] == edges[0] and t.end[-1] == edges[-1]
    sums = label_ns(t, edges, len(layers))
    for k, (a, b) in enumerate(pairwise(edges)):
        assert sums[k].tolist() == [int((truth[a:b] == i).sum()) for i in range(len(layers))]
