"""Closed forms of collective algorithms against algorithms carried out message by message."""

import pytest
from tests.cost import collective_simulator as sim

from stepscope.contract.collectives import bus_factor
from stepscope.cost.closed_form import (
    Fabric,
    Link,
    fastest,
    hierarchical_ns,
    ring_ns,
    ring_steps,
    tree_ns,
)
from stepscope.errors import UsageError

LINK = Link(alpha_ns=5_000, ns_per_byte=0.1)
SIZE = 960_000


def exact(found):
    return pytest.approx(found, rel=1e-9)


@pytest.mark.parametrize("p", [2, 3, 4, 7, 8])
def test_ring_all_reduce_adds_up_everything_in_the_predicted_time(p):
    rounds = sim.ring_reduce_scatter(p) + sim.ring_all_gather(p, first=1)
    held = [{b: {r} for b in range(p)} for r in range(p)]
    everyone = set(range(p))
    assert all(held_block == everyone for rank in sim.reduced(rounds, held) for held_block in rank.values())
    assert len(rounds) == ring_steps("all_reduce", p)
    assert ring_ns("all_reduce", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(rounds, SIZE / p, LINK))


@pytest.mark.parametrize("p", [2, 3, 4, 8])
def test_ring_halves_and_all_to_all_take_the_predicted_time(p):
    scatter, gather = sim.ring_reduce_scatter(p), sim.ring_all_gather(p)
    held = sim.reduced(gather, [{b: {b} if b == r else set() for b in range(p)} for r in range(p)])
    assert all(rank[b] == {b} for rank in held for b in range(p))
    for op, rounds in (("reduce_scatter", scatter), ("all_gather", gather), ("all_to_all", sim.pairwise_all_to_all(p))):
        assert ring_ns(op, size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(rounds, SIZE / p, LINK))
        sent = sum(len(m[2]) for rnd in rounds for m in rnd if m[0] == 0) / p
        assert sent == exact(bus_factor(op, p))


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_trees_take_the_predicted_time(p):
    gather = sim.doubling_all_gather(p)
    held = sim.reduced(gather, [{b: {b} if b == r else set() for b in range(p)} for r in range(p)])
    assert all(rank[b] == {b} for rank in held for b in range(p))
    assert tree_ns("all_gather", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(gather, SIZE / p, LINK))
    assert tree_ns("reduce_scatter", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(gather, SIZE / p, LINK))


@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_binomial_broadcast_and_bruck_take_the_predicted_time(p):
    broadcast = sim.binomial_broadcast(p)
    held = sim.reduced(broadcast, [{0: {0} if r == 0 else set()} for r in range(p)])
    assert all(rank[0] == {0} for rank in held)
    assert tree_ns("broadcast", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(broadcast, SIZE, LINK))
    bruck = sim.bruck_all_to_all(p)
    assert tree_ns("all_to_all", size_bytes=SIZE, ranks=p, link=LINK) == exact(sim.cost_ns(bruck, SIZE / p, LINK))


def test_hierarchy_is_its_parts_one_after_the_other():
    fabric = Fabric(inner=Link(1_000, 0.01), outer=LINK, per_node=4)
    inside = sim.cost_ns(sim.ring_reduce_scatter(4), SIZE / 4, fabric.inner)
    among = sim.cost_ns(sim.ring_reduce_scatter(3) + sim.ring_all_gather(3), SIZE / 4 / 3, LINK)
    found = hierarchical_ns("all_reduce", size_bytes=SIZE, ranks=12, fabric=fabric)
    tree = tree_ns("all_reduce", size_bytes=SIZE / 4, ranks=3, link=LINK)
    assert found == exact(2 * inside + min(among, tree))
    assert hierarchical_ns("all_reduce", size_bytes=SIZE, ranks=10, fabric=fabric) is None


def test_small_messages_among_many_take_trees_and_large_ones_among_few_take_rings():
    flat = Fabric(LINK)
    assert fastest("all_reduce", size_bytes=1_000, ranks=1024, fabric=flat).algorithm == "tree"
    assert fastest("all_reduce", size_bytes=10**9, ranks=8, fabric=flat).algorithm == "ring"
    nodes = Fabric(Link(2_000, 1 / 400), Link(5_000, 1 / 50), 8)
    assert fastest("all_to_all", size_bytes=10_000, ranks=64, fabric=nodes).algorithm in ("tree", "hierarchical")


def test_one_rank_needs_no_time_and_nonsense_is_refused():
    assert ring_ns("all_reduce", size_bytes=SIZE, ranks=1, link=LINK) == 0
    with pytest.raises(UsageError, match="ranks have to be at least 1"):
        fastest("all_reduce", size_bytes=-1, ranks=0, fabric=Fabric(LINK))
    with pytest.raises(UsageError, match="bandwidth above 0"):
        Link(1, 0)
