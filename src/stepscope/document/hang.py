"""Who did not arrive, as JSON and as sentences: the last common collective, who waits where, who is missing."""

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.analyze.hang import DTYPE, EXTRA, LEFT_OUT, MISMATCH, MISSING, ORDER, SHAPE, STUCK, user_frame
from stepscope.records import Row
from stepscope.run.dumps import Dumps
from stepscope.trace.flight_recorder import FlightEntry
from stepscope.units import NS_PER_S, rank_ranges

_SCHEMA = 1
_MAX_STACK = 32


def hang_json(hang: Row, dumps: Dumps) -> dict[str, Any]:
    """Return the whole answer."""
    return {
        "schema": _SCHEMA,
        "hang": hang.found,
        "conclusions": conclusions(hang),
        "ranks": list(hang.ranks),
        "world_size": hang.world_size,
        "without_dump": list(hang.without_dump),
        "suspects": list(hang.suspects),
        "circle": list(hang.circle),
        "groups": [_group_json(g) for g in hang.groups],
        "point_to_point": [
            {"group": u.group, "rank": u.rank, "peer": u.peer, "call": _call_json(u.rank, u.call)}
            for u in hang.unpaired
        ],
        "last_calls": [_call_json(rank, call) for rank, call in sorted(hang.last_calls.items())],
        "warnings": [*dumps.unreadable, *dumps.notes],
    }


def conclusions(hang: Row) -> list[str]:
    """Return what is wrong, one sentence each, the cause first; one sentence where nothing is."""
    lines = [line for state in hang.groups if state.verdict == MISMATCH for line in _of_mismatch(state)]
    lines += [_of_missing(state, hang) for state in hang.groups if state.verdict == MISSING]
    lines += [_of_stuck(state) for state in hang.groups if state.verdict == STUCK]
    lines += [
        f"rank {u.rank} waits in {u.call.named} at {place(u.call)}; rank {u.peer} did not issue the other side"
        for u in hang.unpaired
    ]
    if hang.circle:
        lines.append(f"ranks {_chain(hang.circle)} wait for each other: they call the same groups in different orders")
    if not lines:
        lines.append("no rank waits for another: every collective that was issued is done on every rank with a dump")
    if hang.without_dump:
        lines.append(
            f"no dump of rank {rank_ranges(list(hang.without_dump))}: it may have died, or its file was not given"
        )
    return lines


def place(call: FlightEntry | None) -> str:
    """Return `train.py:42 (step)` of the user's line that issued a call."""
    frame = user_frame(call.stack) if call is not None else None
    return f"{frame.file}:{frame.line} ({frame.function})" if frame else "(no stack recorded)"


def _shapes(call: FlightEntry) -> str:
    types = ", ".join(dict.fromkeys(call.input_dtypes))
    return f"{[list(s) for s in call.input_sizes]} {types}".strip()


def _of_missing(state: Row, hang: Row) -> str:
    waiting = next(iter(state.waiting.values()))
    who = f"rank {rank_ranges(list(state.missing))} did not arrive at {waiting.named} number {state.waiting_at}"
    also = [r for r in state.missing if r not in hang.suspects]
    last = [f"rank {r} {_last_of(hang, r)}" for r in state.missing[:4]]
    chain = f" (rank {rank_ranges(also)} waits elsewhere itself)" if also and len(also) == len(state.missing) else ""
    return (
        f"{who} of group {state.desc}, which rank {rank_ranges(sorted(state.waiting))} issued at {place(waiting)}; "
        f"{'; '.join(last)}{chain}"
    )


def _last_of(hang: Row, rank: int) -> str:
    last = hang.last_calls.get(rank)
    if last is None:
        return "issued nothing at all"
    newest = max((c.created_ns for c in hang.last_calls.values() if c.created_ns is not None), default=None)
    before = ""
    if newest is not None and last.created_ns is not None and newest > last.created_ns:
        before = f", {(newest - last.created_ns) / NS_PER_S:.1f} s before the last of all ranks"
    return (
        f"last issued {last.named} number {last.seq} of group {last.group_desc or last.group} at {place(last)}{before}"
    )


def _of_stuck(state: Row) -> str:
    call = next(iter(state.waiting.values()))
    absent = state.without_dump
    if absent:
        return (
            f"rank {rank_ranges(sorted(state.waiting))} waits in {call.named} number {state.waiting_at} of group "
            f"{state.desc} at {place(call)}; rank {rank_ranges(list(absent))} of this group left no dump"
        )
    if len(state.ranks) == 1:
        return (
            f"rank {state.ranks[0]} waits in {call.named} number {state.waiting_at} of group {state.desc} "
            f"at {place(call)}; who else belongs to this group is not in the dumps: give those of all ranks"
        )
    return (
        f"all ranks of group {state.desc} issued {call.named} number {state.waiting_at} at {place(call)}, and rank "
        f"{rank_ranges(sorted(state.waiting))} did not finish it: its state is {call.state}; "
        "check the device and the network of these ranks"
    )


def _of_mismatch(state: Row) -> list[str]:
    found = state.mismatch
    if found is None:
        return []
    where = f"number {found.seq} of group {state.desc}"
    odd = rank_ranges(list(found.odd_ranks))
    if found.kind in (LEFT_OUT, EXTRA):
        what = "left out" if found.kind == LEFT_OUT else "made one call too many"
        calls = "; ".join(f"{c.named} {_shapes(c)} at {place(c)}" for c in found.missed)
        return [f"rank {odd} {what}, from {where} on: {calls}"]
    said = {ORDER: "calls something else than the others", SHAPE: "gives another size", DTYPE: "gives another type"}
    sides = "; ".join(_side(ranks, call, found.kind) for ranks, call in _alike(found))
    unsure = "" if 2 * len(found.odd_ranks) < len(found.calls) else " (the correct one is unknown)"
    return [f"at {where} rank {odd} {said[found.kind]}{unsure}: {sides}"]


def _side(ranks: Sequence[int], call: FlightEntry, kind: str) -> str:
    what = call.named if kind == ORDER else f"{call.named} {_shapes(call)}"
    return f"rank {rank_ranges(list(ranks))} {what} at {place(call)}"


def _alike(found: Row) -> Iterable[tuple[list[int], FlightEntry]]:
    alike: dict[tuple[object, ...], list[int]] = {}
    for rank, call in sorted(found.calls.items()):
        key = (call.named, call.input_sizes, call.input_dtypes, place(call))
        alike.setdefault(key, []).append(rank)
    return [(ranks, found.calls[ranks[0]]) for ranks in alike.values()]


def _chain(ranks: Sequence[int]) -> str:
    return " -> ".join(map(str, ranks))


def _group_json(state: Row) -> dict[str, Any]:
    found = state.mismatch
    return {
        "name": state.name,
        "desc": state.desc,
        "ranks": list(state.ranks),
        "without_dump": list(state.without_dump),
        "verdict": state.verdict,
        "last_by_rank": [{"rank": rank, "seq": seq} for rank, seq in sorted(state.last_by_rank.items())],
        "last_common": _call_json(None, state.last_common) if state.last_common else None,
        "waiting_at": state.waiting_at,
        "waiting": [_call_json(rank, call) for rank, call in sorted(state.waiting.items())],
        "missing": list(state.missing),
        "mismatch": None
        if found is None
        else {
            "kind": found.kind,
            "seq": found.seq,
            "odd_ranks": list(found.odd_ranks),
            "shift": found.shift,
            "missed": [_call_json(None, call) for call in found.missed],
            "calls": [_call_json(rank, call) for rank, call in sorted(found.calls.items())],
        },
    }


def _call_json(rank: int | None, call: FlightEntry) -> dict[str, Any]:
    frame = user_frame(call.stack)
    return {
        **({} if rank is None else {"rank": rank}),
        "seq": call.seq,
        "group": call.group,
        "op": call.op,
        "name": call.named,
        "state": call.state,
        "completed": call.completed,
        "input_sizes": [list(s) for s in call.input_sizes],
        "output_sizes": [list(s) for s in call.output_sizes],
        "input_dtypes": list(call.input_dtypes),
        "created_ns": call.created_ns,
        "file": frame.file if frame else None,
        "line": frame.line if frame else None,
        "function": frame.function if frame else None,
        "stack": [{"file": f.file, "line": f.line, "function": f.function} for f in call.stack[:_MAX_STACK]],
    }
