"""What a guide tells to do where it depends on the chip: no bfloat16 or TF32 is advised to a chip that has none."""

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.abilities import Abilities, abilities


def can(account: Account) -> Abilities:
    """Return what the run's chip can do."""
    return abilities(account.run.ranks, account.chip.chip)


def onto_tensor_cores(account: Account) -> str:
    """Return how to move products onto tensor cores: TF32 where the chip has it, else 16 bit."""
    return sixteen_bit(account) if can(account).tf32 is False else "torch.set_float32_matmul_precision('high')"


def sixteen_bit(account: Account) -> str:
    """Return how to compute in the 16-bit type that the chip has."""
    return f"torch.autocast('cuda', torch.{can(account).narrow})"


def narrow_messages(account: Account) -> str:
    """Return how to send gradients in the 16-bit type that the chip has."""
    narrow = can(account).narrow
    return f"{'fp16' if narrow == 'float16' else 'bf16'}_compress_hook, reduce_dtype=torch.{narrow}"


def without_scaler(account: Account) -> str:
    """Return how to do without loss scaling, where the chip allows it."""
    if can(account).bf16 is False:
        return "none on this chip: float16 needs the scaler, and it has no bfloat16"
    return "train in bfloat16 without GradScaler"
