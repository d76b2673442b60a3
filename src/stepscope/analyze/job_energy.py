"""Joules of a job by part: the counters of its devices over the spans of its ledger."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np

from stepscope.analyze.energy import NOT_RECORDED, energy_of_spans, missing_counters
from stepscope.analyze.ledger import PARTS, Ledger
from stepscope.run.attempts import Attempt
from stepscope.run.side_files import Telemetry, number, side_files

_NONE = np.zeros(3)


def energy_of_job(ledger: Ledger, attempts: Sequence[Attempt]) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the energy as an object of the job's JSON, or None and why.

    Parts without a reading (start-up, before the first step) are left out.
    """
    telemetry = [side_files(one.folder).telemetry for one in attempts]
    if not any(one.counters.keys() & {"device", "host"} for read in telemetry for one in read):
        telemetry = telemetry[:1]  # the same reason for all
    missing = [
        f"{one.name}: {reason}"
        for one, read in zip(attempts, telemetry, strict=False)
        for reason in _missing(one, read)
    ]
    if missing:
        return None, missing
    measured = [
        [(one, spans[one.rank]) for one in read if one.rank in spans]
        for read, spans in zip(telemetry, ledger.spans, strict=True)
    ]
    launches = [
        energy_of_spans([measured[k] for k in group])
        for _, group in groupby(range(len(attempts)), key=lambda k: ledger.attempts[k].launch)
    ]
    found = {part: sum((one.get(part, _NONE) for one, _ in launches), _NONE).tolist() for part in PARTS}
    total_j, measured_ns, whole_ns = map(sum, zip(*found.values(), strict=True))
    if not measured_ns:
        return None, ["too few readings of the counters"]
    lost = [one.steps_lost for one in ledger.attempts]
    kept = None if None in lost else sum(one.steps - (one.steps_lost or 0) for one in ledger.attempts)
    j_per_step = total_j / kept if kept else None
    tokens = {number(one.description.get("tokens_per_step")) for one in attempts}
    each = tokens.pop() if len(tokens) == 1 else None
    return {
        "total_j": total_j,
        "j_per_step": j_per_step,
        "j_per_token": j_per_step / each if j_per_step is not None and each else None,
        "source": "+".join(dict.fromkeys(source for _, source in launches)),
        "measured_pct": 100 * measured_ns / whole_ns,
        "parts": [
            {"part": part, "j": joules, "pct": 100 * joules / total_j if total_j else None}
            for part, (joules, inside_ns, _) in found.items()
            if inside_ns > 0
        ],
    }, []


def _missing(one: Attempt, telemetry: Sequence[Telemetry]) -> list[str]:
    on_device, reasons = missing_counters(telemetry, one.description, [rank.rank for rank in one.ranks])
    if not reasons and not on_device and not any("host" in read.counters for read in telemetry):
        return [NOT_RECORDED]
    return reasons
