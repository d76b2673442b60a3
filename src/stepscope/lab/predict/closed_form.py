"""What a collective takes on a given fabric: ring, tree and hierarchical algorithms, in closed form.

`size_bytes` is always the full buffer: what a gather receives, what a scatter or an all-to-all sends. A message takes
`alpha_ns + bytes x ns_per_byte`; a rank sends and receives one message at a time, both at once.

    ring   P - 1 steps of n / P each (all-reduce twice as many); a broadcast goes down the chain in chunks
    tree   about log2(P) steps: recursive doubling and halving, Bruck's all-to-all, binomial broadcast; all-reduce is
           the pipelined pair of binary trees that NCCL uses
    hierarchical   inside the nodes and among them, one after the other
"""

from collections.abc import Callable
from math import ceil, log2, sqrt

from stepscope.contract.operations import bus_factor, ring_steps
from stepscope.errors import UsageError
from stepscope.records import dataclass

_ALGORITHMS = ("ring", "tree", "hierarchical")
# of the link: what pipelined trees reach, by NCCL's own tuning (src/graph/tuning.cc)
TREE_BANDWIDTH_SHARE = 0.92


@dataclass(frozen=True)
class Link:
    """What a message costs between two ranks."""

    alpha_ns: float
    ns_per_byte: float

    def __post_init__(self) -> None:
        if self.alpha_ns < 0 or self.ns_per_byte <= 0:
            raise UsageError(f"a latency has to be 0 or more and a bandwidth above 0, not {self}")

    def message_ns(self, size_bytes: float) -> float:
        return self.alpha_ns + size_bytes * self.ns_per_byte


@dataclass(frozen=True)
class Fabric:
    """Links inside a node and, for more than one node, among nodes (per device)."""

    inner: Link
    outer: Link | None = None
    per_node: int = 8

    def flat(self, world_size: int) -> Link:
        """Return the link as one ring or tree over all ranks sees it.

        Parallel rings use every device's way out of the node, so it is as fast as all of them, or as the node inside.
        """
        if self.outer is None or world_size <= self.per_node:
            return self.inner
        return Link(self.outer.alpha_ns, max(self.inner.ns_per_byte, self.outer.ns_per_byte / self.per_node))

    def predict(self, op: str, *, size_bytes: float, world_size: int) -> "Choice":
        """Return the time of the fastest algorithm, as a calibration does."""
        return fastest(op, size_bytes=size_bytes, ranks=world_size, fabric=self)


@dataclass(frozen=True)
class Choice:
    """The fastest algorithm and what each of them takes; links that were not measured give no interval."""

    algorithm: str
    time_ns: float
    all_ns: dict[str, float]
    low_ns: None = None
    high_ns: None = None


def ring_ns(op: str, *, size_bytes: float, ranks: int, link: Link) -> float:
    """Return the time on a ring."""
    if ranks == 1:
        return 0.0
    if op == "send_recv":
        return link.message_ns(size_bytes)
    if op in ("broadcast", "reduce"):
        return min(chain_ns(size_bytes, ranks, chunks, link) for chunks in _good_chunks(size_bytes, ranks, link))
    return ring_steps(op, ranks) * link.message_ns(size_bytes / ranks)


def chain_ns(size_bytes: float, ranks: int, chunks: int, link: Link) -> float:
    """Return the time of a broadcast down a chain of ranks in a number of chunks."""
    return (ranks - 2 + chunks) * link.message_ns(size_bytes / chunks)


def tree_ns(op: str, *, size_bytes: float, ranks: int, link: Link) -> float:
    """Return the time with about log2(P) steps."""
    if ranks == 1:
        return 0.0
    depth = ceil(log2(ranks))
    if op == "all_reduce":
        return 2 * (depth * link.alpha_ns + size_bytes * link.ns_per_byte / TREE_BANDWIDTH_SHARE)
    if op == "all_to_all":
        return _bruck_ns(size_bytes, ranks, link)
    if op in ("broadcast", "reduce"):
        return depth * link.message_ns(size_bytes)
    if op == "send_recv":
        return link.message_ns(size_bytes)
    return depth * link.alpha_ns + bus_factor(op, ranks) * size_bytes * link.ns_per_byte


def hierarchical_ns(op: str, *, size_bytes: float, ranks: int, fabric: Fabric) -> float | None:
    """Return the time in two levels, None where the ranks do not fill several nodes."""
    nodes, rest = divmod(ranks, fabric.per_node)
    if fabric.outer is None or rest or nodes < 2 or op == "send_recv":
        return None
    inner, outer, n, g = fabric.inner, fabric.outer, size_bytes, fabric.per_node
    inside = ring_ns("all_gather", size_bytes=n, ranks=g, link=inner)
    if op == "all_reduce":
        return 2 * inside + _faster("all_reduce", n / g, nodes, outer)
    if op in ("all_gather", "reduce_scatter"):
        return inside + _faster(op, n / g, nodes, outer)
    if op == "all_to_all":
        return inside + _faster(op, n, nodes, outer)
    return _faster(op, n, nodes, outer) + _faster(op, n, g, inner)


def fastest(op: str, *, size_bytes: float, ranks: int, fabric: Fabric) -> Choice:
    """Return the algorithm that wins at this size and number of ranks."""
    if ranks < 1 or size_bytes <= 0:
        raise UsageError(f"ranks have to be at least 1 and a size above 0, not {ranks} ranks and {size_bytes:g} bytes")
    flat = fabric.flat(ranks)
    times = {
        "ring": ring_ns(op, size_bytes=size_bytes, ranks=ranks, link=flat),
        "tree": tree_ns(op, size_bytes=size_bytes, ranks=ranks, link=flat),
        "hierarchical": hierarchical_ns(op, size_bytes=size_bytes, ranks=ranks, fabric=fabric),
    }
    known = {name: time for name, time in times.items() if time is not None}
    best = min(known, key=lambda name: known[name])
    return Choice(best, known[best], known)


def _faster(op: str, size_bytes: float, ranks: int, link: Link) -> float:
    ways: tuple[Callable[..., float], ...] = (ring_ns, tree_ns)
    return min(way(op, size_bytes=size_bytes, ranks=ranks, link=link) for way in ways)


def _good_chunks(size_bytes: float, ranks: int, link: Link) -> tuple[int, ...]:
    if not link.alpha_ns:
        return (max(1, int(size_bytes)),)
    best = sqrt(max(ranks - 2, 0) * size_bytes * link.ns_per_byte / link.alpha_ns)
    return max(1, int(best)), max(1, int(best) + 1)


def _bruck_ns(size_bytes: float, ranks: int, link: Link) -> float:
    block = size_bytes / ranks
    moved = [sum(1 for d in range(ranks) if d >> k & 1) for k in range(ceil(log2(ranks)))]
    return sum(link.message_ns(count * block) for count in moved)
