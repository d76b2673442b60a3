"""What an operator or kernel does: its family, and the work one call of an operator takes."""

from enum import Enum

from stepscope.dataclass import dataclass


class Family(Enum):
    """Kinds of device work that are judged by the same yardstick."""

    GEMM = "gemm"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    """Fused attention. Unfused attention is GEMM, ELEMENTWISE and NORMALISATION operators."""
    NORMALISATION = "normalisation"
    """Layer, batch, group and RMS norm, and softmax."""
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    EMBEDDING = "embedding"
    """Look-ups by index, gathers, and the scatters of their backward."""
    OPTIMIZER = "optimizer"
    COPY = "copy"
    """Copies, casts, concatenations, fills and layout changes."""
    LOSS = "loss"
    OTHER = "other"


MATMUL_FAMILIES = frozenset({Family.GEMM, Family.CONVOLUTION, Family.ATTENTION})
"""Families whose FLOPs are model FLOPs and whose yardstick is the chip's peak; all others are judged by bytes."""


@dataclass(frozen=True)
class OpCost:
    """The work of one call of an operator.

    Bytes are the least that must move: every input read once, every output written once. A kernel that moves more
    shows as below the memory bandwidth, which is what the comparison is for.
    """

    family: Family
    flops: int
    """Model FLOPs, 2 per multiply-add of a matrix product; 0 by definition in families that have none."""
    read_bytes: int
    write_bytes: int
    dtype: str | None = None
    """Element type of a matrix product's operands (`bf16`, `fp8`); None in families that have none."""
    recomputed_flops: int = 0
    """FLOPs that the algorithm repeats: fused attention computes its scores again in backward. Hardware, not model."""
    lower_bound: bool = False
    """True where the recorded inputs do not tell everything and the work is at least this."""

    @property
    def total_bytes(self) -> int:
        """Return read and written bytes together."""
        return self.read_bytes + self.write_bytes

    @property
    def hardware_flops(self) -> int:
        """Return model FLOPs and what the algorithm repeats, as PyTorch's own counter does."""
        return self.flops + self.recomputed_flops
