"""Collective algorithms carried out message by message, with the data they move, to hold closed forms against.

A schedule is a list of rounds, a round a list of messages `(source, target, blocks)`. Each rank sends and receives at
most one message per round. Ranks hold, per block, the set of ranks whose contribution is in it.
"""

from math import ceil, log2

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
