"""Which calls into the device's runtime or driver did the host make, and what does each do to it?

The latter is told by its name, CUDA and HIP alike.
"""

import re

import numpy as np

from stepscope.records import once_per_record
from stepscope.run.device_work import Rows
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, of_kinds
from stepscope.trace.table import Int64s

_SYNCHRONISATION = re.compile(
    r"Synchronize|^(cuda|hip|cu)Memcpy(2D|3D|Peer|ToSymbol|FromSymbol|WithStream|DtoH|HtoD)?(_v2)?$"
)
_ALLOCATION = re.compile(
    r"^(cuda|hip|cu)(Ext)?(Malloc|Free|HostAlloc|HostMalloc|HostFree|HostRegister|HostUnregister"
    r"|Mem(Alloc|Free|Create|Release|Map|Unmap|AddressReserve|AddressFree|SetAccess|HostAlloc|Pool\w*))"
)


def is_synchronisation(name: str) -> bool:
    """Return whether a call blocks the host until the device has caught up.

    >>> [is_synchronisation(s) for s in ("cudaStreamSynchronize", "cudaMemcpy", "cudaMemcpyAsync")]
    [True, True, False]
    """
    return bool(_SYNCHRONISATION.search(name))


def is_allocation(name: str) -> bool:
    """Return whether a call gets or returns memory of the device, or host memory that the device can reach.

    >>> [is_allocation(s) for s in ("cudaMalloc", "hipFree", "cuMemMap", "cudaMemcpyAsync")]
    [True, True, True, False]
    """
    return bool(_ALLOCATION.search(name))


@once_per_record
def runtime_rows(rank: Rank) -> Rows:
    """Return the rows of all calls."""
    return np.flatnonzero(of_kinds(rank.kinds, (EventKind.RUNTIME,)))


@once_per_record
def runtime_starts(rank: Rank) -> Int64s:
    """Return when the calls began, ascending."""
    return np.sort(rank.trace["ts_ns"][runtime_rows(rank)], kind="stable")  # nearly sorted already


@once_per_record
def synchronisations(rank: Rank) -> Rows:
    """Return the rows of the calls that block the host until the device has caught up."""
    return rank.rows_named(is_synchronisation, EventKind.RUNTIME)


@once_per_record
def allocations(rank: Rank) -> Rows:
    """Return the rows of the calls that get or return memory."""
    return rank.rows_named(is_allocation, EventKind.RUNTIME)
