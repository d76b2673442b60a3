"""One vocabulary for collectives: what NCCL records, c10d operators, gloo spans and kernels call the same thing."""

import re
from functools import lru_cache

OPS = (
    "unknown",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "barrier",
    "send",
    "recv",
    "send_recv",
)
OP_CODE = {name: code for code, name in enumerate(OPS)}

# First match wins; the text is lower case without underscores.
_PATTERNS = (
    ("allreduce", "all_reduce"),
    ("reducescatter", "reduce_scatter"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("barrier", "barrier"),
    ("sendrecv", "send_recv"),
    ("gather", "gather"),
    ("scatter", "scatter"),
    ("reduce", "reduce"),
    ("recv", "recv"),
    ("send", "send"),
)

_COMM_PREFIX = re.compile(r"^(nccl|gloo|mpi|ucc|c10d|_c10d_functional)::?")

ELEMENT_BYTES = {
    "float": 4,
    "double": 8,
    "half": 2,
    "c10::half": 2,
    "bfloat16": 2,
    "c10::bfloat16": 2,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "byte": 1,
    "unsigned char": 1,
    "char": 1,
    "signed char": 1,
    "bool": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "c10::float8_e4m3fn": 1,
    "c10::float8_e5m2": 1,
    "complexfloat": 8,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
}


@lru_cache(maxsize=4096)
def op_name(text: str) -> str:
    """Return the collective that a record, operator, annotation or kernel name stands for.

    >>> [op_name(s) for s in ("_allgather_base", "c10d::alltoall_base_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    ['all_gather', 'all_to_all', 'all_reduce']
    """
    plain = text.lower().replace("_", "")
    return next((op for pattern, op in _PATTERNS if pattern in plain), "unknown")


def is_comm_annotation(name: str) -> bool:
    """Return whether a host range or operator wraps one communication call (`nccl:all_reduce`, `c10d::send`)."""
    return bool(_COMM_PREFIX.match(name)) and "wait" not in name and "wrap_tensor" not in name


def element_bytes(dtype: str | None) -> int | None:
    """Return the size of one element, None for a type that is not known."""
    return ELEMENT_BYTES.get(dtype.lower()) if dtype else None
