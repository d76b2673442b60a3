"""Which rank did not arrive, and where is each one? From what the ranks' helpers say of a job that takes no steps.

The newest collective of each rank has a number in its group. A rank whose number is behind the others' did not get to
the one that they wait in, and its Python stack says what it does instead.
"""

from collections.abc import Mapping

from stepscope.contract.live import Frame, Stall

_NOT_THE_USERS = ("/site-packages/", "/dist-packages/", "/stepscope/", "/lib/python", "<frozen", "<string>")
_MAX_RANKS = 16


def explained(stalls: Mapping[int, Stall], num_ranks: int) -> list[str]:
    """Return what to know of a job whose ranks take no steps, the cause first; nothing where all go on."""
    if not stalls:
        return []
    longest = max(stalls.values(), key=lambda stall: stall.for_s)
    many = "no rank has" if len(stalls) == num_ranks else f"{len(stalls)} of {num_ranks} ranks have not"
    lines = [f"{many} taken a step for {longest.for_s:.1f} s; the longest one before took {longest.usual_s:.2f} s"]
    lines += _not_arrived(stalls)
    shown = sorted(stalls)[:_MAX_RANKS]
    lines += [f"rank {rank}: {_whereabouts(stalls[rank])}" for rank in shown]
    if len(stalls) > _MAX_RANKS:
        lines.append(f"and {len(stalls) - _MAX_RANKS} more ranks")
    return lines


def place(stall: Stall) -> str:
    """Return the innermost line of the user's own code, else the innermost line at all."""
    own = next((frame for frame in stall.frames if not _is_foreign(frame)), None)
    frame = own or (stall.frames[0] if stall.frames else None)
    if frame is None:
        return stall.silent or "no stack"
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} in {frame.function}"


def _not_arrived(stalls: Mapping[int, Stall]) -> list[str]:
    by_group: dict[str, dict[int, Stall]] = {}
    for rank, stall in stalls.items():
        if stall.group is not None and stall.sequence is not None:
            by_group.setdefault(stall.group, {})[rank] = stall
    lines = []
    for ranks in by_group.values():
        newest = max(stall.sequence or 0 for stall in ranks.values())
        behind = [rank for rank, stall in sorted(ranks.items()) if (stall.sequence or 0) < newest]
        waiting = next(stall for stall in ranks.values() if stall.sequence == newest)
        if behind:
            who = "rank " + str(behind[0]) if len(behind) == 1 else "ranks " + ", ".join(map(str, behind[:_MAX_RANKS]))
            at = place(stalls[behind[0]])
            lines.append(f"{who} did not arrive at {_named(waiting)}, where the others wait; it is at {at}")
    return lines


def _named(stall: Stall) -> str:
    return (stall.collective or "a collective").rpartition(",")[0] or str(stall.collective)


def _whereabouts(stall: Stall) -> str:
    parts = [place(stall)]
    if stall.region is not None:
        parts.append(f"in {stall.region}")
    if stall.collective is not None:
        parts.append(f"newest collective {stall.collective}")
    return "; ".join(parts)


def _is_foreign(frame: Frame) -> bool:
    return any(part in frame.file for part in _NOT_THE_USERS)
