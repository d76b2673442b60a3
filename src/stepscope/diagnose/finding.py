"""What a rule says: one cause of lost time, what fixing it would save, how that is known and what to do."""

from collections.abc import Callable
from dataclasses import dataclass, field

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import Change


@dataclass(frozen=True)
class Evidence:
    """One number that supports a finding."""

    what: str
    value: float | int | str
    unit: str = ""
    where: str = ""
    """rank, step, kernel or operator it was seen at"""


@dataclass(frozen=True)
class Candidate:
    """A fault that a rule sees in the account, with the change that stands for its fix.

    The saving is found by replaying the run with `change`; `fixed_saving_ns` stands in where no replay can tell
    (another schedule of a pipeline).
    """

    id: str
    title: str
    cause: str
    remedy: str
    change: Change | None = None
    fixed_saving_ns: float | None = None
    ranks: tuple[int, ...] = ()
    cost_ns: float | None = None
    """time per step that shows the fault, whether or not it is on the critical path"""
    evidence: tuple[Evidence, ...] = ()
    sureness: float = 0.9
    """how sure the rule is of the cause itself, 0 to 1"""
    doubt: float = 0.15
    """relative error of the modelled fix"""
    always: bool = False
    """said even where nothing is saved (how far to trust the trace)"""


Rule = Callable[[Account], list[Candidate]]


@dataclass(frozen=True)
class Finding:
    """A candidate with what fixing it saves, given that those above it are fixed already."""

    id: str
    title: str
    ranks: tuple[int, ...]
    cost_ns: float | None
    saving_ns: float
    low_ns: float
    high_ns: float
    saving_pct: float
    alone_ns: float
    """what it would save if it were the only fix"""
    confidence: float
    evidence: tuple[Evidence, ...] = field(default_factory=tuple)
    cause: str = ""
    remedy: str = ""
