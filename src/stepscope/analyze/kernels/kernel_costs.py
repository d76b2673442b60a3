"""How much work did each kernel do, in which precision, and for which operator call?

An operator's cost is shared out among the kernels it launched, by their time. FLOPs go to those that multiply, where
the names tell (the sum of a split product's parts does none of them); bytes go to all.
"""

import re
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.analyze.host.calls import Floats, Mask, sum_by
from stepscope.analyze.kernels.call_costs import FAMILY_CODE, PRECISION_CODE, CallCosts
from stepscope.cost.operators.families import MATMUL_FAMILIES, Family
from stepscope.cost.operators.kernel_names import KernelClass, kernel_class
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind
from stepscope.trace.table import Int64s

UNKNOWN = -1
"""in `tensor_core`"""

_MATMUL_CODES = [FAMILY_CODE[family] for family in MATMUL_FAMILIES]
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

    @property
    def duration_ns(self) -> Int64s:
        """Return how long each row of the work took."""
        return self.rank.work.end_ns - self.rank.work.start_ns

    @cached_property
    def is_matmul(self) -> Mask:
        """Return which rows are kernels of matrix products, with those that only serve a product."""
        return np.isin(self.family, _MATMUL_CODES)


def kernel_costs(calls: CallCosts) -> KernelCosts:
    """Return the work of every kernel of a rank."""
    work = calls.rank.work
    launcher = calls.calls.at_rows(work.op_row)
    above = calls.calls.nearest(calls.counted)
    call = np.where(launcher >= 0, above[launcher], -1) if len(above) else launcher
    named, tensor_core, operand, serves = _classes(calls.rank)
    family = _family(named, call, calls)
    multiplies = np.isin(family, _MATMUL_CODES) & ~serves
    tensor_core[multiplies & (named != family)] = UNKNOWN
    duration = (work.end_ns - work.start_ns).astype(float)
    return KernelCosts(
        calls=calls,
        call=call,
        family=family,
        tensor_core=tensor_core,
        precision=_precision(operand, tensor_core, multiplies, call, calls),
        flops=_shared_out(calls.flops, call, _multiplying(duration, multiplies, call, len(calls.calls))),
        bytes=_shared_out(calls.bytes, call, duration),
        recomputed=(launcher >= 0) & calls.recomputed[launcher] if len(above) else np.zeros(len(work), bool),
    )


def _classes(rank: Rank) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int8], npt.NDArray[np.uint8], Mask]:
    """Return what the names tell: family, tensor-core use, operand type, and whether it only serves a product."""
    work = rank.work
    names, at = np.unique(np.where(work.kind == EventKind.KERNEL, work.name, -1), return_inverse=True)
    found = [kernel_class(rank.trace.strings[name]) if name >= 0 else _NO_CLASS for name in names.tolist()]
    family = np.array([FAMILY_CODE[c.family] for c in found], np.uint8)
    tensor_core = np.array([UNKNOWN if c.tensor_core is None else c.tensor_core for c in found], np.int8)
    operand = np.array([PRECISION_CODE.get(c.dtype or "", 0) for c in found], np.uint8)
    # A product's kernel that is known to be off the tensor cores and has no operand type does not multiply.
    serves = np.isin(family, _MATMUL_CODES) & (tensor_core == 0) & (operand == 0)
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
    operand = np.where(call >= 0, calls.operand[call], 0) if len(calls.operand) else np.zeros_like(named)
    known = np.where(operand > 0, operand, named)
    rounds = (named == _TF32) | ((tensor_core == 1) & (not _FULL_FP32.search(calls.rank.device_name or "")))
    known = np.where((known == _FP32) & rounds, _TF32, known)
    return np.where(multiplies, known, 0).astype(np.uint8)


def _multiplying(duration: Floats, multiplies: Mask, call: Int64s, num_calls: int) -> Floats:
    """Return the weights for sharing out FLOPs: time of multiplying kernels; of all, where a call has none."""
    weight = np.where(multiplies, duration, 0.0)
    none = sum_by(call, weight, num_calls) == 0
    without = (call >= 0) & none[call] if num_calls else np.zeros(len(call), bool)
    return np.where(without, duration, weight)


def _shared_out(amount: Floats, call: Int64s, weight: Floats) -> Floats:
    """Return each kernel's part of its call's amount, NaN for kernels without a call."""
    out = np.full(len(call), np.nan)
    mine = np.flatnonzero(call >= 0)
    if len(mine):
        total = sum_by(call, weight, len(amount))[call[mine]]
        out[mine] = amount[call[mine]] * np.divide(weight[mine], total, out=np.zeros(len(mine)), where=total > 0)
    return out
