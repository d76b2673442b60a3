"""Earliest and latest times in a graph of waits, against the plain definition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.scanner.waits import WaitGraph

Made = tuple[list[list[tuple[int, float]]], list[float], list[float]]
TIMES = st.floats(0, 1e9, allow_nan=False)


@st.composite
def graphs(draw: st.DrawFn) -> Made:
    """Return per node `(source, lag)` of what it waits for, what it takes and its earliest start; numbers shuffled."""
    count = draw(st.integers(1, 25))
    number = draw(st.permutations(range(count)))
    waits: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for later in range(1, count):
        for earlier in draw(st.lists(st.integers(0, later - 1), max_size=3)):
            waits[number[later]].append((number[earlier], draw(TIMES)))
    several = st.lists(TIMES, min_size=count, max_size=count)
    return waits, draw(several), draw(several)


def wait_graph(waits: list[list[tuple[int, float]]]) -> WaitGraph:
    first = np.concatenate(([0], np.cumsum([len(w) for w in waits]))).astype(np.int64)
    edges = [edge for of_node in waits for edge in of_node]
    source = np.array([s for s, _ in edges], np.int64)
    return WaitGraph(first, source, np.array([lag for _, lag in edges], float))


@pytest.mark.slow
@given(graphs())
def test_each_node_starts_as_soon_as_it_can(
    made: Made,
) -> None:
    waits, duration, earliest = made
    graph = wait_graph(waits)
    ends = graph.ends(np.array(earliest), np.array(duration))
    for node, waited in enumerate(waits):
        assert ends[node] == max([earliest[node], *(ends[s] + lag for s, lag in waited)]) + duration[node]
    place = np.argsort(graph.order)
    assert sorted(graph.order.tolist()) == list(range(len(waits)))
    assert all(place[s] < place[node] for node, waited in enumerate(waits) for s, _ in waited)


@pytest.mark.slow
@given(graphs())
def test_each_node_may_end_as_late_as_what_waits_for_it_allows(
    made: Made,
) -> None:
    waits, duration, _ = made
    latest = wait_graph(waits).latest(1e12, np.array(duration))
    followers: list[list[tuple[int, float]]] = [[] for _ in waits]
    for node, waited in enumerate(waits):
        for source, lag in waited:
            followers[source].append((node, lag))
    for node, following in enumerate(followers):
        assert latest[node] == min([1e12, *(latest[n] - duration[n] - lag for n, lag in following)])


def test_a_circle_is_found() -> None:
    graph = wait_graph([[(1, 0.0)], [(0, 0.0)], []])
    assert graph.is_circular and graph.order.tolist() == [2]
