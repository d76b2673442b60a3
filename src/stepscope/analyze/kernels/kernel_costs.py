"""How much work did each kernel do, in which precision, and for which operator call?

An operator's cost is shared out among the kernels it launched, by their time. FLOPs go to those that multiply, where
the names tell (the sum of a split product's parts does none of them); bytes go to all.
"""

import re
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import Floats, Mask
from stepscope.analyze.kernels.call_costs import FAMILIES, FAMILY_CODE, PRECISION_CODE, CallCosts
from stepscope.cost.operators.families import MATMUL_FAMILIES, Family
from stepscope.cost.operators.kernel_names import KernelClass, kernel_class
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.device_work import numbered
from stepscope.run.rank import Rank
from stepscope.stats.distinct import distinct, distinct_places
from stepscope.trace.classify import EventKind
from stepscope.trace.schema import NO_STRING
from stepscope.trace.table import Int64s

UNKNOWN = -1
"""in `tensor_core`"""

_IS_MATMUL = np.array([family in MATMUL_FAMILIES for family in FAMILIES])
"""by code of the family"""
_FP32, _TF32 = PRECISION_CODE["fp32"], PRECISION_CODE["tf32"]
_FULL_FP32 = re.compile(r"AMD|Radeon|Instinct|^MI\d")
"""Devices whose matrix cores take single precision as it is; NVIDIA's round it to TF32."""
_NO_CLASS = KernelClass(Family.OTHER, tensor_core=False, dtype=None)


@dataclass(frozen=True, eq=False, repr=False)
class KernelCosts(ArrayRecord):
    """The work of each row of `rank.work`."""

    calls: CallCosts
    call: Int64s
    """operator call it worked for, index into `calls`; -1 where no costed one launched it"""
    family: npt.NDArray[np.uint8]
    """code in FAMILIES; OTHER for communication, copies and sets"""
    tensor_core: npt.NDArray[np.int8]
    """1 yes, 0 no, UNKNOWN"""
    precision: npt.NDArray[np.uint8]
    """of a matrix product, code in PRECISIONS"""
    flops: Floats
    """NaN unknown"""
    bytes: Floats
    """NaN unknown"""
    recomputed: Mask

    @property
    def rank(self) -> Rank:
        """Return the rank whose work this is."""
        return self.calls.rank

    @cached_property
    def duration_ns(self) -> Int64s:
        """Return how long each row of the work took."""
        return self.rank.work.end_ns - self.rank.work.start_ns

    @cached_property
    def is_matmul(self) -> Mask:
        """Return which rows are kernels of matrix products, with those that only serve a product."""
        return _IS_MATMUL.take(self.family)


def kernel_costs(calls: CallCosts) -> KernelCosts:
    """Return the work of every kernel of a rank."""
    work = calls.rank.work
    launcher = calls.calls.at_rows(work.op_row)
    call = calls.calls.nearest_to(launcher, calls.counted)
    named, tensor_core, operand, serves = _classes(calls.rank)
    family = _family(named, call, calls)
    multiplies = _IS_MATMUL.take(family) & ~serves
    tensor_core[multiplies & (named != family)] = UNKNOWN
    mine = np.flatnonzero(call >= 0)
    owner, duration = call[mine], (work.end_ns - work.start_ns)[mine].astype(float)
    _, sharing = distinct_places(owner)
    flops, size = np.full(len(work), np.nan), np.full(len(work), np.nan)
    flops[mine] = _shared_out(calls.flops[owner], sharing, _multiplying(duration, multiplies[mine], sharing))
    size[mine] = _shared_out(calls.bytes[owner], sharing, duration)
    return KernelCosts(
        calls=calls,
        call=call,
        family=family,
        tensor_core=tensor_core,
        precision=_precision(operand, tensor_core, multiplies, call, calls),
        flops=flops,
        bytes=size,
        recomputed=(launcher >= 0) & calls.recomputed[launcher] if len(calls.calls) else np.zeros(len(work), bool),
    )


def _classes(rank: Rank) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8], npt.NDArray[np.uint8], Mask]:
    """Return what the names tell: family, tensor-core use, operand type, and whether it only serves a product."""
    work = rank.work
    name = np.where(work.kind == EventKind.KERNEL, work.name, NO_STRING).astype(np.int64)
    names, at = distinct(name), numbered(name)
    found = [_NO_CLASS if i == NO_STRING else kernel_class(rank.trace.strings[i]) for i in names.tolist()]
    family = np.array([FAMILY_CODE[c.family] for c in found], np.uint8)
    tensor_core = np.array([UNKNOWN if c.tensor_core is None else c.tensor_core for c in found], np.int8)
    operand = np.array([PRECISION_CODE.get(c.dtype or "", 0) for c in found], np.uint8)
    # A product's kernel that is known to be off the tensor cores and has no operand type does not multiply.
    serves = _IS_MATMUL[family] & (tensor_core == 0) & (operand == 0)
    return family[at], tensor_core[at], operand[at], serves[at]


def _family(named: npt.NDArray[np.uint8], call: Int64s, calls: CallCosts) -> npt.NDArray[np.uint8]:
    """Return the family that the name tells, else that of the operator."""
    ask = (named == FAMILY_CODE[Family.OTHER]) & (call >= 0) & (calls.rank.work.kind == EventKind.KERNEL)
    out = named.copy()
    out[ask] = calls.family[call[ask]]
    return out


def _precision(
    named: npt.NDArray[np.uint8], tensor_core: npt.NDArray[np.int8], multiplies: Mask, call: Int64s, calls: CallCosts
) -> npt.NDArray[np.uint8]:
    """Return the operator's operand type, else the name's; fp32 on NVIDIA's tensor cores is tf32."""
    operand = np.where(call >= 0, calls.operand[call], 0) if len(calls.calls) else np.zeros_like(named)
    known = np.where(operand > 0, operand, named)
    rounds = (named == _TF32) | ((tensor_core == 1) & (not _FULL_FP32.search(calls.rank.device_name or "")))
    known = np.where((known == _FP32) & rounds, _TF32, known)
    return np.where(multiplies, known, 0).astype(np.uint8)


def _multiplying(duration: Floats, multiplies: Mask, sharing: Int64s) -> Floats:
    """Return the weights for sharing out FLOPs: time of multiplying kernels; of all, where a call has none."""
    weight = np.where(multiplies, duration, 0.0)
    none = np.bincount(sharing, weight) == 0
    return np.where(none[sharing], duration, weight)


def _shared_out(amount: Floats, sharing: Int64s, weight: Floats) -> Floats:
    """Return each kernel's part of its call's amount, by its weight among those that share the call."""
    total = np.bincount(sharing, weight)[sharing]
    return amount * np.divide(weight, total, out=np.zeros(len(weight)), where=total > 0)
