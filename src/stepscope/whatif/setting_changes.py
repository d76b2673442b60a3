"""What each setting of a what-if does to the replay: makers of changes from an account and a value."""

import re
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.attribution.budget import host_device_copies
from stepscope.analyze.kernels.call_costs import FAMILIES, FAMILY_CODE
from stepscope.analyze.rank_view import RankView
from stepscope.analyze.replay.changes import Change, faster_network, faster_work, without_work
from stepscope.analyze.replay.communication_changes import fewer_bytes, larger_messages
from stepscope.analyze.replay.overlap_changes import overlapped, perfectly_overlapped
from stepscope.analyze.replay.replay import Replay
from stepscope.analyze.replay.saving import Fix
from stepscope.analyze.replay.straggler_off import straggler_off
from stepscope.contract.regions import Region
from stepscope.cost.operators.families import Family
from stepscope.dataclass import dataclass
from stepscope.errors import UsageError
from stepscope.records import ArrayRecord
from stepscope.run.quality import rank_ranges
from stepscope.trace.classify import EventKind

Mask = npt.NDArray[np.bool_]
Masks = list[Mask]

_TIMES = re.compile(r"^(\d+\.?\d*|\.\d+)x$")
_NOT_FREE = ("tp", "pp", "ep", "cp")
"""parallel over these, collectives stand inside the passes: their results are needed at once"""


@dataclass(frozen=True, eq=False, repr=False)
class SettingRequest(ArrayRecord):
    """One `KEY=VALUE`, and what it is asked of."""

    account: Account
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    def error(self, why: str) -> UsageError:
        """Return the error for a value that cannot be used: why not, and what can."""
        return UsageError(f"--set {self}: {why}")

    def check_value(self, word: str) -> None:
        """Refuse any value but the one that the setting has."""
        if self.value != word:
            raise self.error(f"the only value is {self.key}={word}")


@dataclass(frozen=True)
class SettingChange:
    """A setting as a change."""

    change: Change
    doubt: float = 0.15
    """relative error of the modelled change"""
    saving_ns: float = 0.0
    """what a formula says it saves per step, where no replay can tell"""
    note: str | None = None
    limit_ns: float | None = None
    """the time per step that it claims to remove"""
    claim: str = ""
    """which time that is"""

    @property
    def fix(self) -> Fix:
        """Return the same without the note."""
        return Fix(self.change, self.doubt, self.saving_ns, self.limit_ns, self.claim)


Maker = Callable[[SettingRequest], SettingChange]


def only(word: str, change: Change, *, doubt: float = 0.15, device: bool = False) -> Maker:
    """Return the maker of a setting that has one value."""

    def make(asked: SettingRequest) -> SettingChange:
        asked.check_value(word)
        if device:
            _needs_device(asked)
        return SettingChange(change, doubt)

    return make


def fix(word: str, finding: str) -> Maker:
    """Return the maker of a setting that undoes a fault the rules know, for runs that do not show the fault."""

    def make(asked: SettingRequest) -> SettingChange:
        asked.check_value(word)
        return SettingChange(_same, note=f"{asked}: the run shows no {finding}, so nothing changes")

    return make


def made_of(fix: Fix) -> SettingChange:
    """Return a rule's fix as a setting."""
    return SettingChange(fix.change or _same, fix.doubt, fix.formula_ns, limit_ns=fix.limit_ns, claim=fix.claim)


def straggler(asked: SettingRequest) -> SettingChange:
    """Return late ranks as fast as the median of the others: those found, or those named."""
    ranks = [r.rank for r in asked.account.run.ranks]
    if asked.value == "off":
        late = [s.rank for s in asked.account.stragglers]
        if not late:
            return SettingChange(_same, note=f"{asked}: no rank is late, so nothing changes")
    elif re.fullmatch(r"\d+(,\d+)*", asked.value):
        late = [int(part) for part in asked.value.split(",")]
    else:
        raise asked.error("give off, or ranks such as 3 or 1,3")
    if not set(late) <= set(ranks) or set(late) == set(ranks):
        raise asked.error(f"name some of the recorded ranks ({rank_ranges(ranks)}), but not all of them")
    return SettingChange(lambda replay: straggler_off(replay, late))


def network(asked: SettingRequest) -> SettingChange:
    """Return every transfer faster."""
    speedup = _times(asked)
    return SettingChange(lambda replay: faster_network(replay, speedup))


def fewer(asked: SettingRequest) -> SettingChange:
    """Return every collective with a share of its bytes."""
    share = _times(asked)
    known = any((rank.collectives.full_bytes > 0).any() for rank in asked.account.run.ranks)
    note = None if known else f"{asked}: no collective's size was recorded (--shapes on gloo), so nothing changes"
    return SettingChange(lambda replay: fewer_bytes(replay, share), doubt=0.2, note=note)


def overlap(asked: SettingRequest) -> SettingChange:
    """Return gradients sent while backward runs."""
    asked.check_value("perfect")
    return SettingChange(perfectly_overlapped(_backward(asked)), doubt=0.3)


def bucket_mb(asked: SettingRequest) -> SettingChange:
    """Return gradients in buckets of one size: small ones merged, large ones split, each sent when it is ready."""
    message_bytes = max(1, round(_number(asked) * 2**20))
    backward = _backward(asked)

    def rebucketed(replay: Replay) -> Replay:
        merged = larger_messages(replay, message_bytes)
        return overlapped(merged, backward, message_bytes=message_bytes, exactly=True)

    return SettingChange(rebucketed, doubt=0.35)


def copies(asked: SettingRequest) -> SettingChange:
    """Return the run without copies between host and device, and without waiting for those to it."""
    asked.check_value("hidden")
    _needs_device(asked)
    from stepscope.analyze.replay.hidden_copies import hidden_copies  # only for this setting

    moves: Masks = [host_device_copies(rank) for rank in asked.account.run.ranks]
    return SettingChange(lambda replay: hidden_copies(replay, moves))


def recompute(asked: SettingRequest) -> SettingChange:
    """Return the run without forward work repeated in backward."""
    asked.check_value("off")
    _needs_device(asked)
    again: Masks = [v.costs.recomputed & (v.rank.work.step >= 0) for v in asked.account.ranks]
    return SettingChange(lambda replay: without_work(replay, again))


def kernel(asked: SettingRequest) -> SettingChange:
    """Return the kernels of one family faster."""
    family, share = asked.key.removeprefix("kernel:"), 1 / _times(asked)
    _needs_device(asked)
    costs = [view.costs for view in asked.account.ranks]
    kinds = [view.rank.work.kind == EventKind.KERNEL for view in asked.account.ranks]
    ran = {int(code) for c, is_kernel in zip(costs, kinds, strict=True) for code in np.unique(c.family[is_kernel])}
    present = sorted(FAMILIES[code].value for code in ran)
    if family not in present:
        raise asked.error(f"no such kernel ran; there is {', '.join(f'kernel:{name}' for name in present)}")
    code = FAMILY_CODE[Family(family)]
    chosen: Masks = [(c.family == code) & is_kernel for c, is_kernel in zip(costs, kinds, strict=True)]
    return SettingChange(lambda replay: faster_work(replay, chosen, share))


def microbatches(asked: SettingRequest) -> SettingChange:
    """Return another number of micro-batches at the same total work: a pipeline's bubble shrinks like 1/m."""
    number = _number(asked)
    account, view = asked.account, asked.account.views.pipeline
    if not number.is_integer():
        raise asked.error("the number of micro-batches is a whole number, such as microbatches=16")
    if view is None or not view.microbatches or account.step is None:
        raise asked.error(f"this run has no pipeline; its strategy is {account.strategy.name}")
    bubble_ns = view.bubble_pct / 100 * account.step.step_ns
    note = f"{asked}: by formula; of the step, the bubble's {view.bubble_pct:.1f} % shrinks by {view.microbatches}/m"
    return SettingChange(_same, 0.3, bubble_ns * (1 - view.microbatches / number), note)


def _same(replay: Replay) -> Replay:
    return replay


def _times(asked: SettingRequest) -> float:
    found = _TIMES.match(asked.value)
    if not found or not float(found[1]):
        raise asked.error("give a factor above 0, such as 2x or 0.5x")
    return float(found[1])


def _number(asked: SettingRequest) -> float:
    if not re.fullmatch(r"\d+\.?\d*|\.\d+", asked.value) or not 0 < float(asked.value) < 1e9:
        raise asked.error("give a number above 0, such as 16")
    return float(asked.value)


def _backward(asked: SettingRequest) -> Masks:
    """Return the work of the backward pass, where collectives are of gradients alone."""
    _needs_device(asked)
    if asked.account.strategy.has(*_NOT_FREE):
        raise asked.error(
            f"this run is {asked.account.strategy.name}: not all its collectives are of gradients, and the others "
            "cannot be moved"
        )
    return [_backward_of(view) for view in asked.account.ranks]


def _backward_of(view: RankView) -> Mask:
    if view.budget is None or view.budget.regions is None:
        return np.zeros(len(view.rank.work), bool)
    return view.budget.regions.region == Region.BACKWARD


def _needs_device(asked: SettingRequest) -> None:
    without = [rank.rank for rank in asked.account.run.ranks if not rank.has_device]
    if without:
        ranks = f"rank{'s' if len(without) > 1 else ''} {rank_ranges(without)}"
        raise asked.error(f"this setting is about device work, and the run has {ranks} without device work")
