"""`straggler`: one rank is late. `load-imbalance`: ranks have different amounts of work."""

from stepscope.analyze.account import Account
from stepscope.analyze.ranks.log_stragglers import LateRank, late_ranks
from stepscope.analyze.ranks.stragglers import Straggler
from stepscope.analyze.replay.changes import evenly_spread
from stepscope.analyze.replay.straggler_off import straggler_off
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.measures import host_ms

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


def straggler(account: Account) -> list[Candidate]:
    """Return the late ranks that are slow, and uneven load as a fault of its own."""
    slow = [s for s in account.stragglers if s.cause != "load"]
    heavy = [s for s in account.stragglers if s.cause == "load"]
    found = []
    if slow:
        found.append(_slow(slow, late_ranks(account.run.logs)))
    if heavy and not account.strategy.has("ep"):
        found.append(_heavy(heavy))
    return found


def _slow(late: list[Straggler], unprofiled: list[LateRank]) -> Candidate:
    ranks = tuple(s.rank for s in late)
    first = late[0]
    named = f"Rank {first.rank}" if len(ranks) == 1 else f"Ranks {', '.join(map(str, ranks))}"
    waiting = "every step waits" if first.persistent else f"{first.steps_late} of {first.num_steps} steps wait"
    return Candidate(
        id="straggler",
        title=f"{named}: {waiting} for {'it' if len(ranks) == 1 else 'them'}",
        cause=f"{first.cause}: {_WHY[first.cause]}",
        remedy=f"{_DO[first.cause]} The saving is of the late rank as fast as its peers' median.",
        change=lambda replay: straggler_off(replay, ranks),
        ranks=ranks,
        cost_ns=first.late_ns_per_step,
        evidence=(*_evidence(late), *_unprofiled_evidence([u for u in unprofiled if u.rank in ranks])),
    )


def _unprofiled_evidence(known: list[LateRank]) -> list[Evidence]:
    what = "own time beyond the others', steps without the profiler"
    return [Evidence(what, round(late.late_ms, 3), "ms", f"rank {late.rank}") for late in known]


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


def _evidence(late: list[Straggler]) -> tuple[Evidence, ...]:
    lines = []
    for s in late:
        where = f"rank {s.rank}"
        lines.append(Evidence("own time beyond the others' median per step", host_ms(s.late_ns_per_step), "ms", where))
        lines.append(Evidence("steps late", f"{s.steps_late} of {s.num_steps}", "", where))
        more = {part: ns for part, ns in s.evidence.items() if ns > 0}
        lines += [Evidence(f"excess {part} time per step", host_ms(ns), "ms", where) for part, ns in more.items()]
    return tuple(lines)
