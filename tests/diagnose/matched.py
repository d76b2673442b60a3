"""What kinds of findings match in a run, before any fix is replayed."""

from collections.abc import Iterable

from stepscope.analyze.account import Account
from stepscope.diagnose.finding import Candidate, Finding
from stepscope.diagnose.findings import KINDS
from stepscope.diagnose.lines import KINDS as OF_LINES


def matched(account: Account, id_: str, words: str = "") -> list[Candidate]:
    """Return the candidates of an id whose title has these words."""
    found = [c for kind in KINDS if kind.id == id_ for c in kind.candidates(account)]
    return [c for c in found if words in c.title]


def lines_matched(account: Account) -> list[Candidate]:
    """Return the candidates that are lines of the user's code, but for train.py:8, planted jobs' own loop."""
    found = [c for kind in OF_LINES for c in kind.candidates(account)]
    return [c for c in found if c.match.where[0].text != "train.py:8"]


def texts(findings: Iterable[Finding]) -> str:
    """Return all that findings say."""
    return "\n".join(f"{f.title} {f.cause} {f.remedy} {f.evidence}" for f in findings)
