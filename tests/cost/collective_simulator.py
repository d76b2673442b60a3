"""Collective algorithms carried out message by message, with the data they move, to hold closed forms against.

A schedule is a list of rounds, a round a list of messages `(source, target, blocks)`. Each rank sends and receives at
most one message per round. Ranks hold, per block, the set of ranks whose contribution is in it.
"""

from collections import defaultdict
from math import ceil, log2
from typing import Any

Message = tuple[int, int, tuple[int, ...]]
Rounds = list[list[Message]]


def cost_ns(rounds, block_bytes, link):
    """Return the time: a round lasts as long as its longest message."""
    for messages in rounds:
        assert len({m[0] for m in messages}) == len(messages) == len({m[1] for m in messages})
    return sum(max(link.message_ns(len(m[2]) * block_bytes) for m in messages) for messages in rounds)


def reduced(rounds, held):
    """Return what each rank holds after adding up what it received."""
    for messages in rounds:
        arriving = [(target, {b: set(held[source][b]) for b in blocks}) for source, target, blocks in messages]
        for target, blocks in arriving:
            for block, contributions in blocks.items():
                held[target][block] |= contributions
    return held


def ring_reduce_scatter(p):
    return [[(r, (r + 1) % p, ((r - step) % p,)) for r in range(p)] for step in range(p - 1)]


def ring_all_gather(p, *, first=0):
    return [[(r, (r + 1) % p, ((r + first - step) % p,)) for r in range(p)] for step in range(p - 1)]


def pairwise_all_to_all(p):
    return [[(r, (r + step) % p, ((r + step) % p,)) for r in range(p)] for step in range(1, p)]


def chain_broadcast(p, chunks):
    times = range(p - 2 + chunks)
    return [[(r, r + 1, (t - r,)) for r in range(p - 1) if 0 <= t - r < chunks] for t in times]


def binomial_broadcast(p, blocks=1):
    everything = tuple(range(blocks))
    return [[(r, r + 2**k, everything) for r in range(2**k) if r + 2**k < p] for k in range(ceil(log2(p)))]


def doubling_all_gather(p):
    """Return recursive doubling for a power of two."""
    steps = range(int(log2(p)))
    return [[(r, r ^ 2**k, tuple(b for b in range(p) if b >> k == r >> k)) for r in range(p)] for k in steps]


def bruck_all_to_all(p):
    """Return the rounds; block d of a rank is what it holds for the rank at distance d."""
    return [
        [(r, (r + 2**k) % p, tuple(d for d in range(p) if d >> k & 1)) for r in range(p)] for k in range(ceil(log2(p)))
    ]


def nothing_held(p):
    return [defaultdict(set) for _ in range(p)]


def double_tree_all_reduce_ns(p, size_bytes, chunks, link):
    """Return the time of a pipelined all-reduce over two binary trees, half of the data each.

    Every rank has one port out and one in; a chunk holds both for its bytes and arrives a latency later. Ports serve
    what is ready, the oldest chunk first.
    """
    piece_ns = size_bytes / 2 / chunks * link.ns_per_byte
    waiting = _transfers(p, chunks)
    done_at: dict[Any, Any] = {}
    out_free, in_free = [0.0] * p, [0.0] * p
    while waiting:
        ready = []
        for transfer in waiting:
            needs = waiting[transfer]
            if all(n in done_at for n in needs):
                _, source, target, chunk, _ = transfer
                start = max([out_free[source], in_free[target], *(done_at[n] for n in needs)])
                ready.append((start, chunk, transfer))
        start, _, transfer = min(ready)
        _, source, target, _, _ = transfer
        out_free[source] = in_free[target] = start + piece_ns
        done_at[transfer] = start + piece_ns + link.alpha_ns
        del waiting[transfer]
    return max(done_at.values())


def _transfers(p, chunks):
    """Return every transfer and those it waits for: up from the children, then down from the parent."""
    waits = {}
    for tree in range(2):
        parent = _parents(p, shift=tree)
        children = {r: [c for c in range(p) if parent.get(c) == r] for r in range(p)}
        for chunk in range(chunks):
            up = {r: ("up", r, parent[r], chunk, tree) for r in parent}
            down = {r: ("down", parent[r], r, chunk, tree) for r in parent}
            for r, above in parent.items():
                waits[up[r]] = [up[c] for c in children[r]]
                waits[down[r]] = [down[above]] if above in parent else [up[c] for c in children[above]]
    return waits


def _parents(p, *, shift):
    """Return the parent of each rank in an in-order tree; shifted by one, leaves and inner ranks swap."""
    parent = {}

    def grow(low, high, above):
        if low >= high:
            return
        middle = (low + high) // 2
        if above is not None:
            parent[middle] = above
        grow(low, middle, middle)
        grow(middle + 1, high, middle)

    grow(0, p, None)
    return {(r + shift) % p: (above + shift) % p for r, above in parent.items()}
