"""Which kernels end in a parameter's gradient, and so hand nothing to the kernels that follow them?

The engine stores a gradient in a node of its own (`AccumulateGrad`), right after the node that made it. A node of one
kernel before it (a cast to the parameter's type) made that gradient and nothing else; a node of several made other
things too, of which only the kernels that say so in their name are known to be gradients of parameters.
"""

import numpy as np
import numpy.typing as npt

from stepscope.contract.regions import EVALUATE
from stepscope.run.device_work import enclosing
from stepscope.run.rank import Rank
from stepscope.stats.distinct import among, common
from stepscope.trace.classify import EventKind, by_string

_STORES = "AccumulateGrad"
_OF_PARAMETERS = "GammaBeta"
"""in the names of a normalisation's kernels for the gradients of its scale and offset"""


def parameter_gradients(rank: Rank) -> npt.NDArray[np.bool_]:
    """Return which of a rank's device work makes nothing but the gradient of a parameter."""
    work, trace = rank.work, rank.trace
    found = by_string(trace, work.name, lambda s: _OF_PARAMETERS in s).astype(bool)
    nodes = rank.rows_named(lambda s: s.startswith(EVALUATE), EventKind.HOST_OP)
    launched = np.flatnonzero(work.launch_row >= 0)
    if not len(nodes) or not len(launched):
        return found
    nodes = nodes[np.lexsort((trace["ts_ns"][nodes], trace["tid"][nodes]))]
    stores = by_string(trace, trace["name"][nodes], lambda s: _STORES in s).astype(bool)
    same_thread = trace["tid"][nodes][1:] == trace["tid"][nodes][:-1]
    before_store = np.concatenate((stores[1:] & same_thread, [False])) & ~stores
    node = enclosing(trace, nodes, work.launch_row[launched])
    of_node, count = np.unique(node[node >= 0], return_counts=True)
    alone = common(nodes[before_store], of_node[count == 1])
    found[launched] |= among(node, alone)
    return found
