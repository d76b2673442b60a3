"""Earliest times in a graph of waits, by the compiled module: a replay asks for them for every change it tries."""

import numpy as np
import numpy.typing as npt

from stepscope.trace.scanner.wasm import Instance, MemoryLimitError

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
_NO_MEMORY = "the graph of this run needs more than 4 GB: analyse fewer ranks or steps (--ranks, --steps)"


class WaitGraph:
    """What waits for what, kept in the module's memory. Not for several threads at once."""

    def __init__(self, first_edge: Int64s, edge_from: Int64s, edge_lag_ns: Floats) -> None:
        self._edges = (first_edge, edge_from, edge_lag_ns)
        self._wasm = Instance()
        self._nodes = len(first_edge) - 1
        layout = self._wasm.call("waits_layout", self._nodes, len(edge_from))
        if not layout:
            raise MemoryLimitError(_NO_MEMORY)
        _, _, first, source, order, lag, self._earliest, self._duration, self._end = (
            int(address) for address in self._wasm.view(layout, "uint32", 9)
        )
        self._wasm.view(first, "uint32", self._nodes + 1)[:] = first_edge
        self._wasm.view(source, "uint32", len(edge_from))[:] = edge_from
        self._wasm.view(lag, "float64", len(edge_from))[:] = edge_lag_ns
        ordered = self._wasm.call("waits_order")
        if ordered == 0xFFFFFFFF:
            raise MemoryLimitError(_NO_MEMORY)
        # whether some nodes wait for each other, so that no order exists
        self.is_circular = ordered < self._nodes
        # every node after all it waits for
        self.order: Int64s = self._wasm.view(order, "uint32", ordered).astype(np.int64)

    def __reduce__(self) -> tuple[type["WaitGraph"], tuple[Int64s, Int64s, Floats]]:
        return (WaitGraph, self._edges)

    def ends(self, earliest_ns: Floats, duration_ns: Floats) -> Floats:
        """Return when each node ends that takes so long and starts no earlier than that."""
        self._wasm.view(self._earliest, "float64", self._nodes)[:] = earliest_ns
        self._wasm.view(self._duration, "float64", self._nodes)[:] = duration_ns
        self._wasm.run("waits_ends")
        return self._wasm.view(self._end, "float64", self._nodes).copy()

    def latest(self, last_ns: float, duration_ns: Floats) -> Floats:
        """Return by when each node that takes so long must end for all to have ended at `last_ns`."""
        self._wasm.view(self._end, "float64", self._nodes)[:] = last_ns
        self._wasm.view(self._duration, "float64", self._nodes)[:] = duration_ns
        self._wasm.run("waits_latest")
        return self._wasm.view(self._end, "float64", self._nodes).copy()
