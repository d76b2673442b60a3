"""The step without a line or a module of the user's code: `--without train.py:42`, `--scale module:layers.*.bn=0.5`.

Everything that was done for the owner is taken out of the replay: its host time, kernels, copies, collectives and the
synchronisations it called. That is the step with the line deleted, not with something better in its place, and without
what else a deletion brings about (parameters that lose their gradient).
"""

import re
from collections.abc import Sequence

from stepscope.analyze.account import Account
from stepscope.analyze.owners.selection import OwnerName, owner_name
from stepscope.analyze.replay.owners.part import claimed_ns, part_of
from stepscope.analyze.replay.owners.removal import NO_PART, Part, taken_out
from stepscope.analyze.replay.replay import Replay
from stepscope.dataclass import dataclass
from stepscope.errors import InputError, UsageError
from stepscope.run.quality import rank_ranges
from stepscope.whatif.setting_changes import SettingChange

NOT_RECORDED = (
    "who owns the time was not recorded; record again with stepscope record (without --no-owners or --light), or "
    "profile with with_stack=True"
)
_DOUBT = 0.15
_MAX_FACTOR = 100.0
_SCALE = re.compile(r"^(?P<owner>.+)=(?P<factor>\d+\.?\d*|\.\d+)$")


@dataclass(frozen=True)
class OwnerChange:
    """An owner whose time is to be another."""

    label: str
    owner: str
    factor: float


def without_owner(text: str) -> OwnerChange:
    """Return the change that `--without OWNER` stands for."""
    return OwnerChange(f"{text} deleted", text, 0.0)


def scaled_owner(text: str) -> OwnerChange:
    """Return the change that `--scale OWNER=FACTOR` stands for."""
    found = _SCALE.match(text)
    if found is None or not float(found["factor"]) <= _MAX_FACTOR:
        raise UsageError(
            f"--scale {text}: write OWNER=FACTOR such as train.py:42=0.5, with a factor of at most {_MAX_FACTOR:g}"
        )
    return OwnerChange(f"{found['owner']} x{found['factor']}", found["owner"], float(found["factor"]))


def owner_setting(account: Account, change: OwnerChange, *, ranks: Sequence[int] | None = None) -> SettingChange:
    """Return the change to the replay in which an owner takes another time, on all ranks or on some."""
    known = [one for one in account.ownership if one is not None]
    if not known:
        raise InputError(f"{change.label}: {NOT_RECORDED}")
    name = owner_name(change.owner, known)
    present = [r.rank for r in account.run.ranks]
    wanted = set(present if ranks is None else ranks)
    if not wanted <= set(present):
        raise UsageError(
            f"--ranks {rank_ranges(sorted(wanted))}: not all of them were recorded; there is {rank_ranges(present)}"
        )
    parts = [
        part_of(one, name) if one is not None and one.rank.rank in wanted else NO_PART for one in account.ownership
    ]
    all_ranks = wanted == set(present)

    def changed(replay: Replay) -> Replay:
        return taken_out(replay, parts, factor=change.factor, collectives=all_ranks)

    limit_ns = _limit_ns(account, name, wanted) * (1 - change.factor) if change.factor <= 1 else None
    return SettingChange(changed, _DOUBT, note=_note(account, change, parts, all_ranks), limit_ns=limit_ns)


def _limit_ns(account: Account, name: OwnerName, ranks: set[int]) -> float:
    """Return all the time per step that an owner takes on the rank where it takes most."""
    each = zip(account.ownership, account.owner_sums, strict=True)
    return max((claimed_ns(o, s, name) for o, s in each if o is not None and s and o.rank.rank in ranks), default=0.0)


def _note(account: Account, change: OwnerChange, parts: Sequence[Part], all_ranks: bool) -> str:
    """Return what the prediction is of, and what it leaves out."""
    said = "deleted, not replaced by something better" if not change.factor else "taking another time"
    lines = [f"{change.owner}: the step with it {said}; what else that brings about is not in it"]
    if not all_ranks and any(part.collectives.any() for part in parts if part is not NO_PART):
        lines.append("its collectives stay: the other ranks take part in them")
    missing = [r.rank for r, one in zip(account.run.ranks, account.ownership, strict=True) if one is None]
    if missing:
        lines.append(f"unchanged on rank {rank_ranges(missing)}, whose owners were not recorded")
    return "; ".join(lines)
