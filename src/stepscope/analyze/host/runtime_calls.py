"""What does a call into the device's runtime or driver do to the host? Told by its name, CUDA and HIP alike."""

import re

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
