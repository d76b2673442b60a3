"""Which kernels end in a parameter's gradient, and so hand nothing to the kernels that follow them?

The engine stores a gradient in a node of its own (`AccumulateGrad`), right after the node that made it. A node of one
kernel before it (a cast to the parameter's type) made that gradient and nothing else; a node of several made other
things too, of which only the kernels that say so in their name are known to be gradients of parameters.
"""

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import HostCalls
from stepscope.analyze.kernels.backward_calls import GRADIENT, NODE, backward_calls, calls_among
from stepscope.analyze.kernels.launched_within import launched_within
from stepscope.run.rank import Rank
from stepscope.trace.classify import by_string
from stepscope.trace.table import Trace

_STORES = "AccumulateGrad"
_OF_PARAMETERS = "GammaBeta"
"""in the names of a normalisation's kernels for the gradients of its scale and offset"""


def parameter_gradients(rank: Rank) -> npt.NDArray[np.bool_]:
    """Return which of a rank's device work makes nothing but the gradient of a parameter."""
    work, trace = rank.work, rank.trace
    found = by_string(trace, work.name, lambda s: _OF_PARAMETERS in s).astype(bool)
    backward, launched = backward_calls(rank), np.flatnonzero(work.launch_row >= 0)
    evaluated = backward.only(NODE, GRADIENT)
    if not len(evaluated) or not len(launched):
        return found
    nodes = calls_among(backward.calls, evaluated)
    node = launched_within(rank, nodes, launched)
    inside = np.flatnonzero(node >= 0)
    node = node.take(inside)
    alone = _before_a_store(trace, nodes) & (np.bincount(node, minlength=len(nodes)) == 1)
    found[launched.take(inside)] |= alone.take(node)
    return found


def _before_a_store(trace: Trace, nodes: HostCalls) -> npt.NDArray[np.bool_]:
    """Return which nodes a gradient is stored right after, in the order of their starts."""
    order = np.lexsort((nodes.row, nodes.start_ns, nodes.thread))
    stores = by_string(trace, nodes.name, lambda s: _STORES in s).astype(bool)
    node, following = order[:-1], order[1:]
    out = np.zeros(len(nodes), bool)
    out[node] = stores[following] & ~stores[node] & (nodes.thread[following] == nodes.thread[node])
    return out
