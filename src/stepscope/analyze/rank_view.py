"""What is known of one rank of a run: its window and its waits; in full also its budget and what its kernels cost."""

from stepscope.analyze.attribution.budget import RankBudget
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.ranks.collectives import RankWait
from stepscope.analyze.ranks.window import RankAccount
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.rank import Rank


@dataclass(frozen=True, eq=False, repr=False)
class RankWindow(ArrayRecord):
    """One rank of an account as far as it is known of all of them."""

    rank: Rank
    window: RankAccount | None
    """None where the trace holds neither steps nor work"""
    wait: RankWait | None
    """waits in collectives, None where there is no window"""


@dataclass(frozen=True, eq=False, repr=False)
class RankView(RankWindow):
    """One rank of an account in full."""

    budget: RankBudget | None
    """None without a window, and without a complete step where other ranks have some"""
    costs: KernelCosts

    @property
    def on_device(self) -> bool:
        """Return whether its device was accounted for."""
        return self.budget is not None and self.budget.on_device
