"""What does PyTorch write into the name of an NVTX range? (`torch.autograd.profiler.emit_nvtx`)

    aten::linear, op_id = 317149, sizes = [[16, 512, 4096], [4096, 4096]]
    MulBackward0, seq = 1201, op_id = 88
    FSDP::pre_forward (encoder.block.0), op_id = 12
    step 7                                                  a range of the user's own

Numbers in names make each of millions of texts another one; without them there are a few hundred.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

_PARTS = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
_SEQUENCE = re.compile(r", seq = (\d{1,18})")
_SIZES = re.compile(r", sizes = (\[.*?\])(?:, input_op_ids = |$)")
# Namespaces of operators are written small (aten, c10d, my_kernels), those of ranges are not (FSDP::forward).
_OPERATOR = re.compile(
    r"^[a-z_]\w*::(?!\s)|^(?:autograd|torch)::|^\w+Backward\w{0,6}$|^record_param_comms$|^(?:c10d|_c10d_functional)::"
)
_MAX_TEXT = 65_536


@dataclass(frozen=True)
class TorchRange:
    """One range by its parts."""

    name: str
    is_operator: bool
    sequence: int | None
    sizes: str | None
    """shapes of the inputs, as JSON"""


def torch_range(text: str) -> TorchRange:
    """Return the parts of a range's name.

    >>> torch_range("aten::mm, seq = 4, op_id = 12, sizes = [[2, 3], [3, 4]]")
    TorchRange(name='aten::mm', is_operator=True, sequence=4, sizes='[[2, 3], [3, 4]]')
    """
    cut = _PARTS.search(text)
    if cut is None:
        return TorchRange(text, _is_operator(text), None, None)
    name, rest = text[: cut.start()], text[cut.start() : _MAX_TEXT]
    sequence, sizes = _SEQUENCE.search(rest), _SIZES.search(rest)
    return TorchRange(
        name, _is_operator(name), int(sequence.group(1)) if sequence else None, sizes.group(1) if sizes else None
    )


@lru_cache(maxsize=8192)
def _is_operator(name: str) -> bool:
    return bool(_OPERATOR.match(name))
