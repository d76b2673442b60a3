"""What the page shows: the report's JSON, a grid of ranks and steps, and the slices of one step. Nothing of torch,
traces or accounts is left in it, so that a page of any size can be built for a test.
"""

from dataclasses import field
from typing import Any

import numpy as np
import numpy.typing as npt

from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.report.html.launches import Launch

Int64s = npt.NDArray[np.int64]
Codes = npt.NDArray[np.uint8]

GROUPS = ("compute", "transfer", "wait", "copy", "input", "host", "unknown")
"""what a step's time is coloured by: the parts of the budget in seven groups"""

KINDS = ("forward", "backward", "optimizer", "other", "transfer", "unmatched", "copy", "range", "idle")
"""what a slice is; the first part of a transfer is waiting, as long as `wait_ns` says"""
LANE_OF_KIND = (0, 0, 0, 0, 1, 1, 2, 3, 0)
"""compute, communication, copies, host: the lanes of a rank from top to bottom"""

NO_MATCH = -1


@dataclass(frozen=True, eq=False, repr=False)
class Grid(ArrayRecord):
    """Where every step of every rank went."""

    ranks: tuple[int, ...]
    steps: tuple[int, ...]
    group_ns: npt.NDArray[np.float64]
    """by group, rank and step; NaN where a rank lacks a step"""


@dataclass(frozen=True, eq=False, repr=False)
class MatchedCollectives(ArrayRecord):
    """Collectives that several ranks took part in. `last_rank` is the rank that started last."""

    what: tuple[str, ...]
    """operation, group and size in words"""
    last_rank: Int64s


@dataclass(frozen=True, eq=False, repr=False)
class Slices(ArrayRecord):
    """What ran on the chosen ranks during one step, by rank, lane and start."""

    step: int | None
    """its number, None where no steps were recorded"""
    ranks: tuple[int, ...]
    """the chosen ranks, in the order of the rows"""
    span_ns: int
    rank: Int64s
    """index into `ranks`"""
    kind: Codes
    """index into `KINDS`"""
    start_ns: Int64s
    """since the earliest beginning of the step on any rank, on the shared clock; may be negative"""
    dur_ns: Int64s
    wait_ns: Int64s
    """of a transfer: its first part, until the last rank arrived; 0 elsewhere"""
    name: Int64s
    """index into `names`"""
    match: Int64s
    """index into `matched`, NO_MATCH where there is none"""
    launch: Int64s
    """index into `launches`, NO_MATCH where a slice has none"""
    delay_ns: Int64s
    """from the call that launched it to its start, -1 where that is unknown"""
    names: tuple[str, ...]
    launches: tuple[Launch, ...]
    matched: MatchedCollectives
    notes: tuple[str, ...] = ()
    """what was left out or rounded, in words"""

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, eq=False, repr=False)
class ReportData(ArrayRecord):
    """Everything on the page."""

    report: dict[str, Any]
    """the JSON of the contract, less what the grid holds"""
    grid: Grid | None
    slices: Slices | None
    """of the typical step"""
    more_slices: tuple[Slices, ...] = ()
    """of other steps, as far as they fit"""
    pictures: dict[str, Any] = field(default_factory=dict)
    """what other pictures show, by name; one that has nothing to show is missing"""
    trust: tuple[str, ...] = ()
    """how far to trust the report: one line each, beside the report's own warnings"""
    calibration: dict[str, Any] | None = None
    """curves of the machine's collectives beside the run's own points, where calibrated"""
    code_trees: dict[str, Any] | None = None
    """what lines and modules take as trees, where owners were recorded"""
