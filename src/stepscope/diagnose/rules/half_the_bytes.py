"""`communication-bound` as far as it is known: where messages are narrow already, and where only one rank tells."""

from dataclasses import replace

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Candidate
from stepscope.diagnose.rules.communication_bound import communication_bound
from stepscope.diagnose.rules.limits import not_computing_ns
from stepscope.diagnose.rules.redundant_communication import needed_share
from stepscope.diagnose.scope.applied_fixes import sixteen_bit_messages

_NARROW_ALREADY = (
    "The messages are of 16 bit or less already: send them less often (accumulate gradients over more micro-batches), shard "
    "within the fast links, or use faster links. The saving is of half the bytes."
)
_ONE_RANK_DOUBT = 0.5
"""waiting for other ranks cannot be told from transfer: how much of the time shrinks with the bytes is not known"""


def half_the_bytes(account: Account) -> list[Candidate]:
    """Return exposed transfers, with what the run has done about them already left out of the advice."""
    found = communication_bound(account)
    if sixteen_bit_messages(account):
        found = [replace(c, remedy=_NARROW_ALREADY) for c in found]
    step = account.step
    if step is not None and step.unmatched_ns > step.ns("exposed_transfer"):
        found = [replace(c, cause=f"{c.cause}, or other ranks are late: nobody recorded them", doubt=_ONE_RANK_DOUBT)
                 for c in found]  # fmt: skip
    return found


def needed_transfers_ns(account: Account) -> float | None:
    """Return the time that fewer bytes can remove: not that of bytes which need not be sent at all."""
    most = not_computing_ns(account)
    return None if most is None else most * needed_share(account)
