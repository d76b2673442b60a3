"""The communication operations of one rank as a table: one row per kernel or gloo span, and one per message."""

from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from stepscope.contract.collectives import OP_CODE
from stepscope.dataclass import dataclass
from stepscope.records import ArrayRecord
from stepscope.run.collectives.groups import Group
from stepscope.run.device_work import Rows
from stepscope.trace.table import Int64s

_MAX_RANKS = 1 << 30


@dataclass(frozen=True, eq=False, repr=False)
class Collectives(ArrayRecord):
    """Communication operations of one rank, by start: one row per communication kernel or gloo span."""

    start_ns: Int64s
    end_ns: Int64s
    issue_ns: Int64s
    """when the host asked for it; NONE_NS where that was before the window"""
    op: npt.NDArray[np.uint8]
    """code in `collective_names.OPS`"""
    group: npt.NDArray[np.int32]
    """index into `groups`"""
    in_bytes: Int64s
    """sent by this rank, -1 unknown"""
    out_bytes: Int64s
    """received by this rank, -1 unknown"""
    peer: npt.NDArray[np.int32]
    """other rank of a point-to-point operation, -1 otherwise"""
    step: npt.NDArray[np.int32]
    """index of the step that issued it, -1 for before the window"""
    device_index: Rows
    """row in the rank's DeviceWork, -1 on gloo"""
    record_row: Rows
    """event row of its record or operator, -1 where none was found"""
    groups: tuple[Group, ...]
    messages: "Messages"
    """sends and receives, one row per message; a coalesced operation has several"""
    unanswered: int = 0
    """operators of a CPU rank whose execution is not in the trace"""

    def __len__(self) -> int:
        return len(self.start_ns)

    @cached_property
    def full_bytes(self) -> Int64s:
        """Return the full buffer of each operation: what a gather receives, what a scatter sends. -1 unknown."""
        gathers = (self.op == OP_CODE["all_gather"]) | (self.op == OP_CODE["gather"])
        scatters = (self.op == OP_CODE["reduce_scatter"]) | (self.op == OP_CODE["scatter"])
        larger = np.maximum(self.in_bytes, self.out_bytes)
        return np.where(gathers, self.out_bytes, np.where(scatters, self.in_bytes, larger))

    @property
    def unjoined(self) -> int:
        """Return how many operations were launched in the window and still have no record."""
        return int(((self.record_row < 0) & (self.step >= 0)).sum())


@dataclass(frozen=True, eq=False, repr=False)
class Messages(ArrayRecord):
    """Point-to-point messages of one rank, in the order they were issued."""

    collective: npt.NDArray[np.int64]
    """row in Collectives"""
    is_send: npt.NDArray[np.bool_]
    peer: npt.NDArray[np.int32]
    size_bytes: Int64s

    def __len__(self) -> int:
        return len(self.collective)


@dataclass(frozen=True)
class Meaning:
    """What a communication kernel turned out to be."""

    op: str
    group: Group
    in_bytes: int = -1
    out_bytes: int = -1
    peer: int = -1
    messages: tuple[tuple[bool, int, int], ...] = ()
    """`(is_send, peer, bytes)` of each point-to-point message it carries"""


def collective_table(
    meanings: list[Meaning],
    meaning: Int64s,
    *,
    start_ns: Int64s,
    end_ns: Int64s,
    issue_ns: Int64s,
    step: npt.NDArray[np.int32],
    device_index: Rows,
    record_row: Rows,
    unanswered: int = 0,
) -> Collectives:
    """Return times and records as one table with the meanings; `meaning` is the number of each operation's."""
    groups: dict[Group, int] = {}
    group = np.array([groups.setdefault(m.group, len(groups)) for m in meanings], np.int32)
    messages = [(i, *message) for i, number in enumerate(meaning.tolist()) for message in meanings[number].messages]
    return Collectives(
        start_ns=start_ns,
        end_ns=end_ns,
        issue_ns=issue_ns,
        op=np.array([OP_CODE[m.op] for m in meanings], np.uint8)[meaning],
        group=group[meaning],
        in_bytes=_known(m.in_bytes for m in meanings)[meaning],
        out_bytes=_known(m.out_bytes for m in meanings)[meaning],
        peer=_known((m.peer for m in meanings), most=_MAX_RANKS).astype(np.int32)[meaning],
        step=step,
        device_index=device_index,
        record_row=record_row,
        groups=tuple(groups),
        messages=Messages(
            collective=np.array([m[0] for m in messages], np.int64),
            is_send=np.array([m[1] for m in messages], bool),
            peer=_known((m[2] for m in messages), most=_MAX_RANKS).astype(np.int32),
            size_bytes=_known(m[3] for m in messages),
        ),
        unanswered=unanswered,
    )


def _known(values: Iterable[int], *, most: int = 1 << 60) -> Int64s:
    """Return the values as a column; numbers that no job has are unknown."""
    return np.array([value if value <= most else -1 for value in values], np.int64)
