"""Which sends and receives have no other side? Per pair of ranks of a group, as many of one as of the other."""

from collections.abc import Mapping

from stepscope.contract.collectives import RECV, SEND
from stepscope.dataclass import dataclass
from stepscope.trace.pickles.flight_recorder import FlightDump, FlightEntry


@dataclass(frozen=True)
class UnpairedCall:
    """A send or receive that is not done, and whose other side its peer did not issue."""

    group: str
    rank: int
    peer: int
    call: FlightEntry


def unpaired_calls(dumps: Mapping[int, FlightDump], *, members: Mapping[str, tuple[int, ...]]) -> list[UnpairedCall]:
    """Return what is waited for between two ranks: unfinished calls beyond the unfinished ones of the other side.

    The numbers in a pair are ranks of the group; `members` turns them into ranks of the job.
    """
    open_calls: dict[tuple[str, int, int, str], list[FlightEntry]] = {}
    for dump in dumps.values():
        for call in dump.entries:
            if call.is_p2p and not call.completed and call.peers is not None and call.op in (SEND, RECV):
                ranks = members.get(call.group, ())
                a, b = (ranks[p] if p < len(ranks) else p for p in call.peers)
                open_calls.setdefault((call.group, a, b, call.op), []).append(call)
    found = []
    for (group, sender, receiver, op), calls in open_calls.items():
        other_side = open_calls.get((group, sender, receiver, RECV if op == SEND else SEND), [])
        rank, peer = (sender, receiver) if op == SEND else (receiver, sender)
        if len(calls) > len(other_side) and peer in dumps:
            found.append(UnpairedCall(group, rank, peer, calls[len(other_side)]))
    return found
