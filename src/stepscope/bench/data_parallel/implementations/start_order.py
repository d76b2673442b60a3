"""Who may start now? Things become ready in any order, but every rank has to start them in the same one.

Collectives are matched by their order: if rank 0 all-reduces A then B while rank 1 does B then A, the sums are wrong or
the job hangs. So what is ready early waits until it is its turn.

    ready(1) -> []      ready(0) -> [0, 1]      rest() -> [2]
"""


class StartOrder:
    """The turns of `count` things within one step."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._ready: set[int] = set()
        self._next = 0

    def ready(self, thing: int) -> list[int]:
        """Return the things whose turn has come now that this one is ready."""
        self._ready.add(thing)
        first = self._next
        while self._next in self._ready:
            self._next += 1
        return list(range(first, self._next))

    def rest(self) -> list[int]:
        """Return what has not had its turn, and begin anew."""
        left = list(range(self._next, self._count))
        self._ready, self._next = set(), 0
        return left
