"""One vocabulary for collectives: what NCCL records, c10d operators, gloo spans and kernels call the same thing.

The size of a collective is its *full buffer*: what every rank has at the end of an all-gather, what every rank had at
the beginning of a reduce-scatter or an all-to-all. With P ranks and a time t for n bytes,

    algorithm bandwidth = n / t        bus bandwidth = factor x n / t

where the factor is the share of the buffer that has to cross each link, so that the bus bandwidth can be held against
the link whatever the operation and the number of ranks.
"""

import re
from functools import lru_cache

UNKNOWN_OP = "unknown"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER = "all_to_all", "broadcast", "reduce", "gather", "scatter"
BARRIER, SEND, RECV, SEND_RECV = "barrier", "send", "recv", "send_recv"
OPS = (
    *(UNKNOWN_OP, ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, REDUCE, GATHER, SCATTER, BARRIER),
    *(SEND, RECV, SEND_RECV),
)
OP_CODE = {name: code for code, name in enumerate(OPS)}

# operations that can be calibrated and predicted
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv")

# First match wins; the text is lower case without underscores. A barrier may be carried out as an all-reduce.
_PATTERNS = (
    ("barrier", BARRIER),
    ("allreduce", ALL_REDUCE),
    ("reducescatter", REDUCE_SCATTER),
    ("allgather", ALL_GATHER),
    ("alltoall", ALL_TO_ALL),
    ("broadcast", BROADCAST),
    ("sendrecv", SEND_RECV),
    ("gather", GATHER),
    ("scatter", SCATTER),
    ("reduce", REDUCE),
    ("recv", RECV),
    ("send", SEND),
)

# expert-parallel libraries (DeepEP): their kernels carry no record, and their names say what they are for
EXPERT_KERNEL = re.compile(r"deep_?ep::|::ep::|\b(internode|intranode)(_ll)?::", re.IGNORECASE)


# bytes of one element, by torch's names of its types in lower case
_ELEMENT_BYTES = {
    **dict.fromkeys(("c10::complex<double>", "complexdouble"), 16),
    **dict.fromkeys(("double", "long", "long int", "uint64", "complexfloat", "c10::complex<float>"), 8),
    **dict.fromkeys(("float", "int", "uint32"), 4),
    **dict.fromkeys(("half", "c10::half", "bfloat16", "c10::bfloat16", "short", "uint16"), 2),
    **dict.fromkeys(("byte", "unsigned char", "char", "signed char", "bool"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "c10::float8_e4m3fn", "c10::float8_e5m2"), 1),
}


@lru_cache(maxsize=4096)
def op_name(text: str) -> str:
    """Return the collective of a record, operator, annotation or kernel name.

    >>> [op_name(s) for s in ("_allgather_base", "c10d::alltoall_base_", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")]
    ['all_gather', 'all_to_all', 'all_reduce']
    """
    plain = text.lower().replace("_", "")
    if EXPERT_KERNEL.search(text):
        return ALL_TO_ALL if "dispatch" in plain or "combine" in plain else BARRIER if "notify" in plain else UNKNOWN_OP
    return next((op for pattern, op in _PATTERNS if pattern in plain), UNKNOWN_OP)


def is_comm_annotation(name: str) -> bool:
    """Return whether a host range or operator wraps one communication call (`nccl:all_reduce`, `c10d::send`)."""
    return (
        bool(re.match(r"(nccl|gloo|mpi|ucc|c10d|_c10d_functional)::?", name))
        and "wait" not in name
        and "wrap_tensor" not in name
    )


def element_bytes(dtype: str | None) -> int | None:
    """Return the size of one element, None for a type that is not known."""
    return _ELEMENT_BYTES.get(dtype.lower()) if dtype else None


def bus_factor(op: str, ranks: int) -> float:
    """Return the share of the full buffer that every rank sends: bus bandwidth / algorithm bandwidth.

    One rank alone sends nothing of what is shared out or reduced.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("scatter", 4), bus_factor("broadcast", 4)
    (1.5, 0.75, 0.75, 1.0)
    """
    if op == ALL_REDUCE:
        return 2 * (ranks - 1) / ranks
    return (ranks - 1) / ranks if op in (ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER) else 1.0


def ring_steps(op: str, ranks: int) -> int:
    """Return the hops that one byte's result waits for: the multiple of the latency.

    >>> ring_steps("all_reduce", 4), ring_steps("all_gather", 4), ring_steps("send_recv", 4)
    (6, 3, 1)
    """
    return {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(op, ranks - 1)
