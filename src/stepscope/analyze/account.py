"""The account of a run: everything that the report, in any form, shows."""

from dataclasses import dataclass

from stepscope.analyze.rank_account import RankAccount, rank_account
from stepscope.errors import InputError
from stepscope.run.load import Run


@dataclass(frozen=True)
class Account:
    """One run with the account of each of its ranks, in the order of `run.ranks`."""

    run: Run
    ranks: tuple[RankAccount | None, ...]
    """None for a rank whose trace holds neither steps nor work"""
    warnings: tuple[str, ...]

    @property
    def num_steps(self) -> int:
        """Return how many steps were recorded on the rank that has the most."""
        return max((len(r.steps) for r in self.run.ranks), default=0)


def account_of(run: Run) -> Account:
    """Return the account of a run; an `InputError` where no rank holds anything to account for."""
    ranks = tuple(rank_account(r) for r in run.ranks)
    if not any(ranks):
        paths = ", ".join(r.trace.path for r in run.ranks[:3])
        raise InputError(f"expected steps, device work or operators, found none of them in {paths}")
    warnings = [*run.warnings]
    for rank, account in zip(run.ranks, ranks, strict=True):
        said = account.warnings if account else ("the trace holds neither steps nor work",)
        warnings += [f"rank {rank.rank}: {line}" for line in said]
    return Account(run, ranks, tuple(warnings))
