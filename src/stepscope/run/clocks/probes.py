"""What did the recorder itself measure of the clocks, and does it agree with the collectives?

The first rank of every host asked rank 0 for the time, before and after the window (`clock_probes` in `run.json`):

    {"when": "before", "at_ns": local time, "offset_ns": rank 0's clock minus ours, "uncertainty_ns": half the round}

An answer came between question and receipt, so the true offset lies within the uncertainty whatever the network did.
Such bounds cut into those of the collectives; ranks that no collective ties to the others get their offset from them.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from stepscope.dataclass import dataclass
from stepscope.run.clocks.machines import machine_of_rank
from stepscope.run.clocks.offsets import FLOOR_NS, Clocks
from stepscope.run.load import Run
from stepscope.stats.distinct import distinct

_FASTEST_DRIFT = 100e-6
"""what the clock of a computer drifts at most: for times outside the probes"""
MAX_PROBE_NS = 1 << 61
"""differences of two stay within 64 bits; a time of the year 2043 is as far as that"""
_NAN = float("nan")

Probe = dict[str, int]


@dataclass(frozen=True)
class Tie:
    """What probes say a rank's offset to the first rank is, at its reference time."""

    offset_ns: int
    uncertainty_ns: float
    drift_ppm: float = _NAN
    """nan where two probes do not show one"""


def probed_ties(run: Run, clocks: Clocks) -> list[Tie | None]:
    """Return for each rank what probes say of its offset to the first one; None where there are none.

    Ranks of one machine share its clock, hence its probes; rank 0 and its machine need none.
    """
    to_rank_0 = [
        _at(probes, int(at_ns)) for probes, at_ns in zip(_probes_of_ranks(run), clocks.reference_ns, strict=True)
    ]
    first = to_rank_0[0]
    return [None if tie is None or first is None else _difference(tie, first) for tie in to_rank_0]


def tied_by_probes(clocks: Clocks, ties: list[Tie | None], machines: list[str | None]) -> Clocks:
    """Return the clocks with the ranks known that only probes, or their machine, tie to the first.

    Ranks that collectives tie to each other are moved together, so that what they waited for each other stays.
    """
    offset, uncertainty, drift = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy(), clocks.drift_ppm.copy()
    known = clocks.known.copy()
    same_clock = _ties_of_machines(clocks, machines)
    ties = [tie or same_clock.get(machine or "") for tie, machine in zip(ties, machines, strict=True)]
    for root in distinct(clocks.tied_to[~known]).tolist():
        together = np.flatnonzero(clocks.tied_to == root)
        probed = [(i, tie) for i in together.tolist() if (tie := ties[i]) is not None]
        if not probed:
            continue
        best, tie = min(probed, key=lambda pair: pair[1].uncertainty_ns)
        offset[together] += tie.offset_ns - offset[best]
        uncertainty[together] += np.where(together == best, 0.0, uncertainty[best]) + tie.uncertainty_ns
        uncertainty[best] = tie.uncertainty_ns + FLOOR_NS
        if np.isnan(drift[together]).all():
            drift[together] = tie.drift_ppm
        known[together] = True
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, drift_ppm=drift, known=known)


def within_probes(run: Run, clocks: Clocks, ties: list[Tie | None]) -> Clocks:
    """Return the clocks within the bounds of the probes; a rank whose collectives lie outside them keeps its
    offset, and a warning says so.
    """
    offset, uncertainty = clocks.offset_ns.copy(), clocks.uncertainty_ns.copy()
    against = []
    for index, tie in enumerate(ties):
        if tie is None or not clocks.known[index]:
            continue
        low = max(offset[index] - uncertainty[index], tie.offset_ns - tie.uncertainty_ns - FLOOR_NS)
        high = min(offset[index] + uncertainty[index], tie.offset_ns + tie.uncertainty_ns + FLOOR_NS)
        if low > high:
            against.append(run.ranks[index].rank)
            continue
        # No further than the bounds ask for: collectives know neighbours better than probes do.
        offset[index] = round(min(max(offset[index], low), high))
        uncertainty[index] = max(high - offset[index], offset[index] - low)
    warnings = (*clocks.warnings, *_contradicted(against))
    return replace(clocks, offset_ns=offset, uncertainty_ns=uncertainty, warnings=warnings)


def _probes_of_ranks(run: Run) -> list[list[Probe] | None]:
    """Return each rank's probes of rank 0's clock: its own or its machine's; empty where they read the same clock,
    None where nobody asked.
    """
    listed = run.description.get("ranks")
    facts = {rank: f for rank, f in listed.items() if isinstance(f, dict)} if isinstance(listed, dict) else {}
    asked = {rank: [p for p in _listed(f.get("clock_probes")) if _is_probe(p)] for rank, f in facts.items()}
    of_machine = {f["boot_id"]: asked[rank] for rank, f in facts.items() if asked[rank] and _is_id(f.get("boot_id"))}
    same = facts.get("0", {}).get("boot_id")
    if _is_id(same):
        of_machine[same] = []
    machines = machine_of_rank(run)
    return [
        [] if rank.rank == 0 else asked.get(str(rank.rank)) or of_machine.get(machine or "")
        for rank, machine in zip(run.ranks, machines, strict=True)
    ]


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []


def _is_id(found: Any) -> bool:
    return isinstance(found, str)


def _is_probe(probe: Any) -> bool:
    keys = ("at_ns", "offset_ns", "uncertainty_ns")
    within = isinstance(probe, dict) and all(type(probe.get(k)) is int and abs(probe[k]) <= MAX_PROBE_NS for k in keys)
    return within and probe["uncertainty_ns"] >= 0


def _at(probes: list[Probe] | None, at_ns: int) -> Tie | None:
    """Return the offset at one moment from those measured before and after it."""
    if not probes:
        return None if probes is None else Tie(0, 0.0)
    first, last = min(probes, key=lambda p: p["at_ns"]), max(probes, key=lambda p: p["at_ns"])
    elapsed = last["at_ns"] - first["at_ns"]
    share = min(max((at_ns - first["at_ns"]) / elapsed, 0.0), 1.0) if elapsed else 0.0
    outside = max(first["at_ns"] - at_ns, at_ns - last["at_ns"], 0)
    change = last["offset_ns"] - first["offset_ns"]
    doubt = (1 - share) * first["uncertainty_ns"] + share * last["uncertainty_ns"]
    shows = elapsed > 0 and abs(change) > first["uncertainty_ns"] + last["uncertainty_ns"]
    return Tie(
        offset_ns=first["offset_ns"] + round(share * change),
        uncertainty_ns=doubt + _FASTEST_DRIFT * outside,
        drift_ppm=change / elapsed * 1e6 if shows else _NAN,
    )


def _difference(tie: Tie, first: Tie) -> Tie:
    if tie is first:
        return Tie(0, 0.0)
    drift = float(np.nan_to_num(tie.drift_ppm) - np.nan_to_num(first.drift_ppm))
    shown = not (np.isnan(tie.drift_ppm) and np.isnan(first.drift_ppm))
    return Tie(
        offset_ns=tie.offset_ns - first.offset_ns,
        uncertainty_ns=tie.uncertainty_ns + first.uncertainty_ns,
        drift_ppm=drift if shown else _NAN,
    )


def _ties_of_machines(clocks: Clocks, machines: list[str | None]) -> dict[str, Tie]:
    """Return the offset of each machine on which a rank's clock is known."""
    found: dict[str, Tie] = {}
    for index, machine in enumerate(machines):
        if machine is not None and clocks.known[index]:
            doubt = float(clocks.uncertainty_ns[index]) if index else 0.0
            found.setdefault(machine, Tie(int(clocks.offset_ns[index]), doubt))
    return found


def _contradicted(ranks: list[int]) -> list[str]:
    if not ranks:
        return []
    return [
        f"clock probes of rank {', '.join(map(str, ranks))} contradict the collectives, which count: a clock was set "
        "or a file was changed after recording"
    ]
