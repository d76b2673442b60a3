"""The lists of the report as tables: one row per entry, one column per plain value."""

from collections.abc import Mapping, Sequence
from typing import Any

_LISTS = ("ranks", "collectives", "kernels", "operators", "critical_path", "stragglers", "findings", "checks")


class ReportTables:
    """Tables of a report's JSON."""

    def __init__(self, report: Mapping[str, Any]) -> None:
        self._rows = {name: report[name] for name in _LISTS if report.get(name)}

    def names(self) -> Sequence[str]:
        """Return the lists that hold something."""
        return tuple(self._rows)

    def columns(self, name: str) -> Mapping[str, Sequence[Any]]:
        """Return the plain values of a list by their keys."""
        rows = self._rows[name]
        keys = [k for k in rows[0] if not any(isinstance(row.get(k), list | dict) for row in rows)]
        return {key: [row.get(key) for row in rows] for key in keys}
