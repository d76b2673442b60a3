"""All tables of a run by name, each made when it is first asked for.

stepscope.load("run/").table("collectives")["wait_ns"]      a NumPy array
stepscope.load("run/").table("events").arrow()              a pyarrow.Table
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope.errors import UsageError
from stepscope.run.aligned import AlignedRun, aligned
from stepscope.run.load import Run
from stepscope.run.step_log import StepLog
from stepscope.tables.recorded import collectives, device_work, events, step_log, step_values, steps
from stepscope.tables.schema import TABLES
from stepscope.tables.table import Table

if TYPE_CHECKING:
    from stepscope.analyze.account import Account
    from stepscope.diagnose.findings import Diagnosis

_OF_TRACES = {"events": events, "device_work": device_work, "collectives": collectives, "steps": steps}
_OF_LOGS = {"step_log": step_log, "step_values": step_values}


class LogTables:
    """The tables of step logs alone, of a run without traces."""

    NAMES = tuple(_OF_LOGS)

    def __init__(self, logs: Sequence[StepLog]) -> None:
        self._logs = logs

    def table(self, name: str) -> Table:
        """Return one table; a `UsageError` where there is none of that name."""
        if name not in _OF_LOGS:
            raise UsageError(f"a run without traces has no table {name!r}; use one of {', '.join(_OF_LOGS)}")
        return _OF_LOGS[name](self._logs)


class RunTables:
    """The tables of one run. The account is made, as `account` says, and imported, where a table needs it."""

    def __init__(self, run: Run, *, account: "Account | Callable[[Run], Account] | None" = None) -> None:
        self._run = run
        self._given = account
        self._made: dict[str, Table] = {}

    def table(self, name: str) -> Table:
        """Return one table; a `UsageError` that lists them all where there is none of that name."""
        if name not in TABLES:
            raise UsageError(f"there is no table {name!r}; use one of {', '.join(TABLES)}")
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def _make(self, name: str) -> Table:
        if name in _OF_TRACES:
            return _OF_TRACES[name](self._shared)
        if name in _OF_LOGS:
            return _OF_LOGS[name](self._run.logs)
        from stepscope.tables.account import NEED_FINDINGS, account_table

        return account_table(name, self.account, self._diagnosis if name in NEED_FINDINGS else None)

    @cached_property
    def account(self) -> "Account":
        """Return the account of the run."""
        if self._given is not None:
            return self._given(self._run) if callable(self._given) else self._given
        from stepscope.analyze.account import account_of

        return account_of(self._run)

    @property
    def late_warnings(self) -> tuple[str, ...]:
        """Return those of the account, as far as one was made."""
        return self.account.late_warnings if "account" in self.__dict__ else ()

    @cached_property
    def _shared(self) -> AlignedRun:
        if "account" in self.__dict__ or not (self._given is None or callable(self._given)):
            return self.account.shared
        return aligned(self._run)

    @cached_property
    def _diagnosis(self) -> "Diagnosis":
        from stepscope.diagnose.findings import diagnose

        return diagnose(self.account)
