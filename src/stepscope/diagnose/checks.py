"""The check lists of the field as live checks: every item measured and marked pass, fail or not measured.

    id                          good      bad        of
    device_utilisation_pct      > 80      < 50       the step
    data_loading_pct            < 10      > 30       the step
    all_reduce_pct_of_backward  < 15      > 30       backward and the reductions that lengthen it
    host_device_copies_pct      < 5       > 15       the step
    data_share_pct              <= 10                the step; 5-10 is usual
    forward_share_pct           30 - 40              the step
    backward_share_pct          40 - 50              the step
    optimizer_share_pct         <= 10                the step; 5-10 is usual
    step_time_spread_pct        <= 10     > 10       the mean step
    memory_pct_of_limit         < 95      >= 95      the device's memory

A check passes only where the number is good. Between good and bad it fails, and the reason says that it is neither.
A number that is not known is `None` and the check `not measured`.
"""

from stepscope.analyze.account import Account
from stepscope.dataclass import dataclass
from stepscope.diagnose.measurements import (
    Measurement,
    data_loading,
    device_share,
    device_utilisation,
    gradient_sync_of_backward,
    memory_of_limit,
    phase_share,
    step_time_spread,
)

PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"


@dataclass(frozen=True)
class Check:
    """One item of a check list. The fields are those of the report's JSON."""

    id: str
    value: float | None
    good: str
    bad: str | None
    """None where the field gives no limit beyond which a number is bad"""
    status: str
    """`pass`, `fail` or `not measured`"""
    reason: str


@dataclass(frozen=True)
class Range:
    """Numbers that count as good, or as bad. None is no limit; the limits themselves are in unless `open`."""

    low: float | None = None
    high: float | None = None
    open: bool = True

    def __contains__(self, value: float) -> bool:
        inside = (self.low is None or value >= self.low) and (self.high is None or value <= self.high)
        return inside and not (self.open and value in (self.low, self.high))

    def __str__(self) -> str:
        if self.low is not None and self.high is not None:
            return f"{self.low:g} - {self.high:g}"
        sign, limit = (">", self.low) if self.high is None else ("<", self.high)
        return f"{sign}{'' if self.open else '='} {limit:g}"


def checks_of(account: Account) -> list[Check]:
    """Return every check of the table above."""
    return [
        checked("device_utilisation_pct", device_utilisation(account), good=Range(low=80), bad=Range(high=50)),
        checked("data_loading_pct", data_loading(account), good=Range(high=10), bad=Range(low=30)),
        checked(
            "all_reduce_pct_of_backward", gradient_sync_of_backward(account), good=Range(high=15), bad=Range(low=30)
        ),
        checked("host_device_copies_pct", device_share(account, "copy"), good=Range(high=5), bad=Range(low=15)),
        *_shares(account),
        checked(
            "step_time_spread_pct",
            step_time_spread(account),
            good=Range(high=10, open=False),
            bad=Range(low=10),
        ),
        checked(
            "memory_pct_of_limit",
            memory_of_limit(account.memory),
            good=Range(high=95),
            bad=Range(low=95, open=False),
        ),
    ]


def checked(name: str, found: Measurement, *, good: Range, bad: Range | None = None) -> Check:
    """Return a number held against what is good and what is bad."""
    if found.value is None:
        return Check(name, None, str(good), str(bad) if bad else None, NOT_MEASURED, found.how)
    value = round(found.value, 4)
    if value in good:
        status, reason = PASS, found.how
    else:
        between = bad is not None and value not in bad
        status, reason = FAIL, f"neither good nor bad: {found.how}" if between else found.how
    return Check(name, value, str(good), str(bad) if bad else None, status, reason)


def _shares(account: Account) -> list[Check]:
    """Return the parts of the step against their usual shares. Too little loading or optimizer is no fault."""
    little = Range(high=10, open=False)
    return [
        checked("data_share_pct", data_loading(account), good=little),
        checked("forward_share_pct", phase_share(account, "forward"), good=Range(30, 40, open=False)),
        checked("backward_share_pct", phase_share(account, "backward"), good=Range(40, 50, open=False)),
        checked("optimizer_share_pct", phase_share(account, "optimizer"), good=little),
    ]
