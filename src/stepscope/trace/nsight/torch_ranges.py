"""What does PyTorch write into the name of an NVTX range? (`torch.autograd.profiler.emit_nvtx`)

    aten::linear, op_id = 317149, sizes = [[16, 512, 4096], [4096, 4096]]
    MulBackward0, seq = 1201, op_id = 88
    FSDP::pre_forward (encoder.block.0), op_id = 12
    step 7                                                  a range of the user's own

Numbers in names make each of millions of texts another one; without them there are a few hundred.
"""

import re
from functools import lru_cache

from stepscope.dataclass import dataclass

_SEQUENCE, _OP_ID, _SIZES, _INPUTS = ", seq = ", ", op_id = ", ", sizes = ", ", input_op_ids = "
_MAX_DIGITS = 18
# Namespaces of operators are written small (aten, c10d, my_kernels), those of ranges are not (FSDP::forward).
_OPERATOR = re.compile(
    r"^[a-z_][\w.]*::(?!\s)|^\w+Backward\w{0,6}$|^record_param_comms$|^detach_?$"
    # What PyTorch itself runs as functions without a namespace.
    r"|^(?:Torch-Compiled Region|TorchDynamo Cache Lookup|Pregraph bytecode|AOTDispatcher Runtime|CompiledFunction"
    r"|PythonSubclass|RegisterPostBackwardFunction|_FromTorchTensor|_ToTorchTensor|_NoopSaveInputs"
    r"|(?:Nested)?Redistribute)\b"
)


@dataclass(frozen=True)
class TorchRange:
    """What all ranges of one operator and one set of shapes have in common."""

    name: str
    is_operator: bool
    sizes: str | None
    """shapes of the inputs, as JSON"""


def without_numbers(text: str) -> tuple[str, int | None]:
    """Return a range's name without the numbers that are its own, and its sequence number, None where it has none.

    >>> without_numbers("aten::mm, seq = 4, op_id = 12, sizes = [[2, 3], [3, 4]]")
    ('aten::mm, sizes = [[2, 3], [3, 4]]', 4)
    """
    text, sequence = _without(text, _SEQUENCE)
    text, _ = _without(text, _OP_ID)
    inputs = text.find(_INPUTS)
    number = sequence.strip()
    return text if inputs < 0 else text[:inputs], int(number) if 0 < len(number) <= _MAX_DIGITS else None


def torch_range(plain: str) -> TorchRange:
    """Return the parts of a name without numbers.

    >>> torch_range("aten::mm, sizes = [[2, 3], [3, 4]]")
    TorchRange(name='aten::mm', is_operator=True, sizes='[[2, 3], [3, 4]]')
    """
    name, _, sizes = plain.partition(_SIZES)
    return TorchRange(name, _is_operator(name), sizes or None)


def _without(text: str, what: str) -> tuple[str, str]:
    """Return a text without `, op_id = 12`, and the digits; the text as it is where no digits follow."""
    at = text.find(what)
    if at < 0:
        return text, ""
    first = at + len(what)
    end = text.find(",", first)
    digits = text[first:] if end < 0 else text[first:end]
    if not (digits.isascii() and digits.isdigit()):
        return text, ""
    return text[:at] + (text[end:] if end >= 0 else ""), digits


@lru_cache(maxsize=8192)
def _is_operator(name: str) -> bool:
    return bool(_OPERATOR.match(name))
