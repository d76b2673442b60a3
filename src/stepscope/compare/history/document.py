"""The history as the JSON document of `stepscope history`."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from stepscope.compare.history.groups import groups
from stepscope.compare.history.newest import in_time, newest_runs
from stepscope.compare.history.row import HistoryRow
from stepscope.compare.history.slow_hosts import MAX_P, MIN_RUNS, MIN_SLOWDOWN, host_records

SCHEMA = 1


def history_json(folder: str, rows: Sequence[HistoryRow], *, by: str) -> dict[str, Any]:
    """Return rows from the oldest to the newest, their groups, the newest of each configuration, and the hosts."""
    return {
        "schema": SCHEMA,
        "folder": folder,
        "runs": [asdict(row) for row in in_time(rows)],
        "by": by,
        "groups": [asdict(group) for group in groups(rows, by)],
        "newest": [asdict(one) for one in newest_runs(rows)],
        "hosts": [asdict(one) for one in host_records(rows)],
        "slow_host_rule": {"max_p": MAX_P, "min_runs": MIN_RUNS, "min_slowdown": MIN_SLOWDOWN},
    }
