"""`straggler`: one rank is late. `load-imbalance`: ranks have different amounts of work."""

from collections.abc import Sequence
from dataclasses import replace

from stepscope.analyze.account import Account
from stepscope.analyze.ranks.device_state import DeviceState, slower_clock
from stepscope.analyze.ranks.log_stragglers import LateRank, late_ranks
from stepscope.analyze.ranks.stragglers import Straggler
from stepscope.analyze.ranks.uneven_compute import uneven_compute
from stepscope.analyze.replay.changes import evenly_spread
from stepscope.analyze.replay.straggler_off import straggler_off
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.owned_change import at
from stepscope.diagnose.rules.measures import host_ms
from stepscope.units import ms

_WHY = {
    "host": "its host needs longer per step than the others' (slow or busy CPU, stalls, another process)",
    "device": "its device needs longer for the same work (clocks, power or heat limit, another process, a fault)",
    "data": "its input is late (slow disk or loader on that rank)",
    "load": "it has more work than the others",
    "network": "its link is slower",
}
_DO = {
    "host": "Look at that machine: CPU frequency and load, other processes, NUMA binding, python stalls on that rank only.",
    "device": "Check clocks, temperature, throttle reasons and ECC of that device (nvidia-smi -q); drain it if it stays slow.",
    "data": "Look at that rank's storage and loader workers; shard the data evenly.",
    "load": "Balance the batches (sort by length, pack sequences, same batch on every rank).",
    "network": "Check that rank's link and switch port.",
}
_ALL_STEPS = 1 << 40
_UNEVEN_BY_DESIGN = ("ep", "pp")
"""experts have a finding of their own, stages are cut by layers"""


def straggler(account: Account) -> list[Candidate]:
    """Return the late ranks that are slow, and uneven load as a fault of its own."""
    slow = [s for s in account.stragglers if s.cause != "load"]
    heavy = [s for s in account.stragglers if s.cause == "load"]
    found = []
    if slow:
        late = _slow(slow, late_ranks(account.run.logs, window_steps=_ALL_STEPS), account.devices)
        found.append(_placed(account, late))
    if heavy and not account.strategy.has("ep"):
        found.append(_heavy(heavy))
    if not account.stragglers and not account.strategy.has(*_UNEVEN_BY_DESIGN):
        found += _uneven(account)
    return found


def _slow(late: list[Straggler], unprofiled: list[LateRank], devices: Sequence[DeviceState]) -> Candidate:
    ranks = tuple(s.rank for s in late)
    first = late[0]
    named = f"Rank {first.rank}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))}"
    waiting = "every step waits" if first.persistent else f"{first.steps_late} of {first.num_steps} steps wait"
    return Candidate(
        id="straggler",
        title=f"{named}: {waiting} for {'it' if len(ranks) == 1 else 'them'}",
        cause=f"{first.cause}: {_recurs(first) or _WHY[first.cause]}{_held_back(first, devices)}",
        remedy=f"{_DO[first.cause]} The saving is of the late rank as fast as its peers' median.",
        change=lambda replay: straggler_off(replay, ranks),
        ranks=ranks,
        cost_ns=first.late_ns_per_step,
        # Measured in steps without the profiler, lateness is all there is to gain; in a trace it is an estimate.
        limit_ns=first.late_ns_per_step if first.rank in {u.rank for u in unprofiled} else None,
        evidence=(
            *_evidence(late),
            *_unprofiled_evidence([u for u in unprofiled if u.rank in ranks]),
            *_device_evidence(ranks, devices),
        ),
    )


def _placed(account: Account, late: Candidate) -> Candidate:
    """Return a late rank with the lines that it alone executes, where taking them out saves most of its lateness."""
    from stepscope.diagnose.rules.lone_lines import lone_lines, without_lone_lines  # only where a rank is late

    replay, as_peers = account.owned_replay, late.change
    lines = lone_lines(account, late.ranks)
    if replay is None or as_peers is None or not lines:
        return late
    without = without_lone_lines(account, late.ranks, lines)
    if replay.period_ns - without(replay).period_ns < MIN_MOSTLY * (replay.period_ns - as_peers(replay).period_ns):
        return late
    places = [f"{file}:{line}" for file, line in lines]
    named = ", ".join(places)
    several = len(late.ranks) > 1
    return replace(
        late,
        title=f"{late.title.split(':')[0]} alone execute{'' if several else 's'} {named}",
        cause=f"{late.cause}; {named} is executed on no other rank",
        remedy=f"Do what {named} does on all ranks in turn, less often, or outside the training job. The saving is of "
        "the step without it.",
        change=without,
        where=tuple(at(line, share=1.0 / len(lines)) for line in lines),
        what_if=("--without", places[0], "--ranks", ",".join(map(str, late.ranks))) if len(places) == 1 else (),
    )


def _recurs(late: Straggler) -> str | None:
    """Return what the step log says of a rank that is late in some steps only; None where it is late for no region."""
    named = [name for name, ns in late.evidence.items() if name not in ("data", "device") and ns > 0]
    return f"it alone is busy with {', '.join(named)} in some steps" if named else None


def _held_back(late: Straggler, devices: Sequence[DeviceState]) -> str:
    """Return that the device of a late rank was throttled, where the recorder saw it."""
    mine = next((d for d in devices if d.rank == late.rank), None)
    return f"; its device is {mine.held_back}" if mine is not None and mine.held_back else ""


def _device_evidence(ranks: tuple[int, ...], devices: Sequence[DeviceState]) -> list[Evidence]:
    lines = []
    for mine in (d for d in devices if d.rank in ranks):
        where = f"rank {mine.rank}"
        slower = slower_clock(mine, [d for d in devices if d.rank not in ranks])
        said = (("device", mine.held_back), ("clock of its device", slower))
        lines += [Evidence(what, value, "", where) for what, value in said if value]
        if mine.others_bytes:
            lines.append(Evidence("memory of other processes on its device", mine.others_bytes, "bytes", where))
    return lines


def _unprofiled_evidence(known: list[LateRank]) -> list[Evidence]:
    what = "own time beyond the others', steps without the profiler"
    return [
        Evidence(
            what, round(ms(late.late_ns), 3), "ms", f"rank {late.rank}, {ms(late.low_ns):.1f} to {ms(late.high_ns):.1f}"
        )
        for late in known
    ]


def _heavy(late: list[Straggler]) -> Candidate:
    ranks = tuple(s.rank for s in late)
    return Candidate(
        id="load-imbalance",
        title=f"Rank {ranks[0]} has more work than the others",
        cause="the same operators run on larger shapes there",
        remedy=f"{_DO['load']} The saving is of the same work spread evenly.",
        change=evenly_spread,
        ranks=ranks,
        cost_ns=late[0].late_ns_per_step,
        evidence=_evidence(late),
        doubt=0.3,
    )


def _uneven(account: Account) -> list[Candidate]:
    """Return uneven work that makes no rank the late one: too little beside the transfers, or in turns."""
    found = uneven_compute(account.run.ranks)
    if found is None:
        return []
    one = found.heaviest
    by_rank = zip(found.ranks, found.compute_ns.mean(axis=1).tolist(), strict=True)
    return [
        Candidate(
            id="load-imbalance",
            title=f"Rank {one[0]} has more work than the others" if one else "Ranks take turns at having more work",
            cause="kernels of the same step launch more threads there, and every rank waits for the one with the most",
            remedy=f"{_DO['load']} The saving is of the same work spread evenly.",
            change=evenly_spread,
            ranks=one,
            cost_ns=found.imbalance_ns,
            limit_ns=found.imbalance_ns,
            evidence=(
                Evidence("most compute of a rank beyond the mean rank's, per step", host_ms(found.imbalance_ns), "ms"),
                *(Evidence("compute per step", host_ms(ns), "ms", f"rank {rank}") for rank, ns in by_rank),
            ),
            doubt=0.3,
            sureness=0.8,
        )
    ]


def _evidence(late: list[Straggler]) -> tuple[Evidence, ...]:
    lines = []
    for s in late:
        where = f"rank {s.rank}"
        lines.append(Evidence("own time beyond the others' median per step", host_ms(s.late_ns_per_step), "ms", where))
        lines.append(Evidence("steps late", f"{s.steps_late} of {s.num_steps}", "", where))
        more = {part: ns for part, ns in s.evidence.items() if ns > 0}
        lines += [Evidence(f"excess {part} time per step", host_ms(ns), "ms", where) for part, ns in more.items()]
    return tuple(lines)
