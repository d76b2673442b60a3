"""Memory as one answer, as JSON: what the trace and the step logs say of each rank, and each rank's snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepscope.analyze.account import Account
from stepscope.analyze.memory.snapshot.view import SnapshotView
from stepscope.document.plain_values import in_ms
from stepscope.document.report import memory_json
from stepscope.document.side_files import memory_of_steps
from stepscope.predict.memory_states import StateRow
from stepscope.predict.memory_what_if import MemoryWhatIf

SCHEMA = 1


def memory_document(
    account: Account | None,
    snapshots: Mapping[int | None, SnapshotView],
    *,
    predicted: Sequence[StateRow] = (),
    what_ifs: Sequence[MemoryWhatIf] = (),
    of_rank: int | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `memory` as in the report (null without traces), memory of the logged steps, the snapshots, what the
    formulas say beside what was measured, and the changes that were asked for; those two of `of_rank` alone.
    """
    beside = account.run.beside if account else None
    return {
        "schema": SCHEMA,
        "run": account.run.name if account else None,
        "memory": memory_json(account.memory) if account else None,
        "memory_steps": [memory_of_steps(log) for log in account.run.logs] if account else [],
        "memory_peaks": [{**peak, "rank": rank} for rank, peak in beside.memory_peaks.items()] if beside else [],
        "other_processes": [{"rank": one.rank, "size_bytes": one.others_bytes} for one in account.devices]
        if account
        else [],
        "snapshots": [snapshot_json(rank, view) for rank, view in snapshots.items()],
        "predicted_rank": of_rank,
        "predicted": [asdict(row) for row in predicted],
        "what_ifs": [what_if_json(one) for one in what_ifs],
        "warnings": [*warnings, *(account.failures if account else ())],
    }


def what_if_json(one: MemoryWhatIf) -> dict[str, Any]:
    """Return one change; times are milliseconds per step."""
    return in_ms(one, ("extra_low", "extra_high"))


def snapshot_json(rank: int | None, view: SnapshotView) -> dict[str, Any]:
    """Return one snapshot; times are microseconds since the first event of its history."""
    return {"rank": rank, **asdict(view), "path": Path(view.path).name}
