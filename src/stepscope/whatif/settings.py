"""Changes to a run by name: what `stepscope whatif --set KEY=VALUE` understands.

    account = account_of(load("run-folder"))
    what_if(account, ["straggler=off", "network=2x"]).prediction.step_ns

A setting that a finding proposes (`optimizer=fused`) saves the same as the finding: both are the same change.
"""

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.budget import host_device_copies
from stepscope.analyze.collective_costs import RankView
from stepscope.analyze.operators import FAMILIES, FAMILY_CODE
from stepscope.analyze.ownership import OwnerName, owner_name
from stepscope.analyze.pipeline import microbatch_saving_ns
from stepscope.analyze.replay.changes import (
    Change,
    evenly_spread,
    faster_network,
    faster_work,
    fewer_bytes,
    larger_messages,
    overlapped,
    passes_as_graphs,
    perfectly_overlapped,
    straggler_off,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
    without_work,
)
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.removal import (
    NO_PART,
    Fix,
    Part,
    claimed_ns,
    part_of,
    predict,
    taken_out,
    together,
)
from stepscope.analyze.replay.replay import Replay
from stepscope.contract.step_line import Region
from stepscope.cost.operators import Family
from stepscope.diagnose.finding import FINDING_OF_SETTING
from stepscope.diagnose.findings import KINDS
from stepscope.errors import InputError, InvalidValueError, UnknownNameError, UsageError, did_you_mean
from stepscope.records import ArrayRecord, Row, dataclass
from stepscope.trace.table import EventKind
from stepscope.units import NS_PER_MS, rank_ranges
from stepscope.whatif.keys import FAMILY, SETTINGS

# What each setting of a what-if does to the replay: makers of changes from an account and a value.

Mask = npt.NDArray[np.bool_]
Masks = list[Mask]

_TIMES = re.compile(r"^(\d+\.?\d*|\.\d+)x$")
# parallel over these, collectives stand inside the passes: their results are needed at once
_NOT_FREE = ("tp", "pp", "ep", "cp")


@dataclass(frozen=True, eq=False, repr=False)
class SettingRequest(ArrayRecord):
    """One `KEY=VALUE` and the account it applies to."""

    account: Account
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"

    def error(self, why: str) -> UsageError:
        return InvalidValueError(f"{self}: {why}")

    def check_value(self, word: str) -> None:
        if self.value != word:
            raise self.error(f"the only value is {self.key}={word}")


@dataclass(frozen=True)
class SettingChange:
    """A setting as a change."""

    change: Change
    #: relative error of the modelled change
    doubt: float = 0.15
    #: predicted saving per step by a formula, where no replay is possible
    saving_ns: float = 0.0
    note: str | None = None
    #: the time per step that it claims to remove
    limit_ns: float | None = None
    #: which time that is
    claim: str = ""

    @property
    def fix(self) -> Fix:
        return Fix(self.change, self.doubt, self.saving_ns, self.limit_ns, self.claim)


Maker = Callable[[SettingRequest], SettingChange]


def _only(word: str, change: Change, *, doubt: float = 0.15, device: bool = False) -> Maker:

    def make(asked: SettingRequest) -> SettingChange:
        asked.check_value(word)
        if device:
            _needs_device(asked)
        return SettingChange(change, doubt)

    return make


def _fix(word: str, finding: str) -> Maker:

    def make(asked: SettingRequest) -> SettingChange:
        asked.check_value(word)
        return SettingChange(_same, note=f"{asked}: the run shows no {finding}, so nothing changes")

    return make


def _made_of(fix: Fix) -> SettingChange:
    return SettingChange(fix.change or _same, fix.doubt, fix.formula_ns, limit_ns=fix.limit_ns, claim=fix.claim)


def _straggler(asked: SettingRequest) -> SettingChange:
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


def _network(asked: SettingRequest) -> SettingChange:
    speedup = _times(asked)
    return SettingChange(lambda replay: faster_network(replay, speedup))


def _fewer(asked: SettingRequest) -> SettingChange:
    share = _times(asked)
    known = any((rank.collectives.full_bytes > 0).any() for rank in asked.account.run.ranks)
    note = None if known else f"{asked}: no collective's size was recorded (--shapes on gloo), so nothing changes"
    return SettingChange(lambda replay: fewer_bytes(replay, share), doubt=0.2, note=note)


def _overlap(asked: SettingRequest) -> SettingChange:
    asked.check_value("perfect")
    return SettingChange(perfectly_overlapped(_backward(asked)), doubt=0.3)


def _bucket_mb(asked: SettingRequest) -> SettingChange:
    message_bytes = max(1, round(_number(asked) * 2**20))
    backward = _backward(asked)

    def rebucketed(replay: Replay) -> Replay:
        merged = larger_messages(replay, message_bytes)
        return overlapped(merged, backward, message_bytes=message_bytes, exactly=True)

    return SettingChange(rebucketed, doubt=0.35)


def _copies(asked: SettingRequest) -> SettingChange:
    asked.check_value("hidden")
    _needs_device(asked)
    from stepscope.analyze.replay.changes import hidden_copies  # only for this setting

    moves: Masks = [host_device_copies(rank) for rank in asked.account.run.ranks]
    return SettingChange(lambda replay: hidden_copies(replay, moves))


def _recompute(asked: SettingRequest) -> SettingChange:
    asked.check_value("off")
    _needs_device(asked)
    again: Masks = [v.costs.recomputed & (v.rank.work.step >= 0) for v in asked.account.ranks]
    return SettingChange(lambda replay: without_work(replay, again))


def _kernel(asked: SettingRequest) -> SettingChange:
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


def _microbatches(asked: SettingRequest) -> SettingChange:
    number = _number(asked)
    account, view = asked.account, asked.account.views.pipeline
    if not number.is_integer():
        raise asked.error("the number of micro-batches is a whole number, such as microbatches=16")
    if view is None or not view.microbatches or account.step is None:
        raise asked.error(f"this run has no pipeline; its strategy is {account.strategy.name}")
    shrinks = f"only the time in which stages fill and drain shrinks, by {view.microbatches}/m"
    note = f"{asked}: by formula; of the bubble {shrinks}; each further message takes its latency"
    return SettingChange(_same, 0.3, microbatch_saving_ns(view, number, step_ns=account.step.step_ns), note)


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


# The change to the replay for a fault that the rules detect: what `optimizer=fused` and the like apply.


def fix_of(account: Account, finding: str) -> Fix | None:
    """Return the fix of all faults with this finding id, made together; None where the run shows none that has a fix,
    or only those that say that another option gives it, or none.

    Only kinds with this id are matched: all of them take longer than the replay.
    """
    found = [
        candidate.fix
        for kind in KINDS
        if kind.id == finding
        for candidate in kind.candidates(account)
        if candidate.match.what_if is None
    ]
    fixes = [fix for fix in found if fix.change is not None or fix.formula_ns]
    return together(fixes) if fixes else None


# The step without a line or a module of the user's code: `--without train.py:42`, `--scale module:layers.*.bn=0.5`.
#
# All work of the owner is removed from the replay: its host time, kernels, copies, collectives and the synchronisations
# it called. That is the step with the line deleted, not with something better in its place, and without what else a
# deletion brings about (parameters that lose their gradient).

NOT_RECORDED = (
    "who owns the time was not recorded; record again with stepscope record (without --no-owners or --light), or "
    "profile with with_stack=True"
)
_MAX_FACTOR = 100.0
_SCALE = re.compile(r"^(?P<owner>.+)=(?P<factor>\d+\.?\d*|\.\d+)$")


@dataclass(frozen=True)
class OwnerChange:
    """An owner with a changed time."""

    label: str
    owner: str
    factor: float


def without_owner(text: str) -> OwnerChange:
    """Return the change of `--without OWNER`."""
    return OwnerChange(f"{text} deleted", text, 0.0)


def _scaled_owner(text: str) -> OwnerChange:
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
    return SettingChange(changed, 0.15, note=_note(account, change, parts, all_ranks), limit_ns=limit_ns)


def _limit_ns(account: Account, name: OwnerName, ranks: set[int]) -> float:
    each = zip(account.ownership, account.owner_sums, strict=True)
    return max((claimed_ns(o, s, name) for o, s in each if o is not None and s and o.rank.rank in ranks), default=0.0)


def _note(account: Account, change: OwnerChange, parts: Sequence[Part], all_ranks: bool) -> str:
    said = "deleted, not replaced by something better" if not change.factor else "taking another time"
    lines = [f"{change.owner}: the step with it {said}; side effects are not included"]
    if not all_ranks and any(part.collectives.any() for part in parts if part is not NO_PART):
        lines.append("its collectives stay: the other ranks take part in them")
    missing = [r.rank for r, one in zip(account.run.ranks, account.ownership, strict=True) if one is None]
    if missing:
        lines.append(f"unchanged on rank {rank_ranges(missing)}, whose owners were not recorded")
    return "; ".join(lines)


# the change of each key of `SETTINGS`
MAKERS: dict[str, Maker] = {
    "straggler": _straggler,
    "load": _only("even", evenly_spread, doubt=0.3),
    "overlap": _overlap,
    "network": _network,
    "bytes": _fewer,
    "bucket_mb": _bucket_mb,
    "data": _only("instant", without_data_wait),
    "sync": _only("off", without_syncs, doubt=0.3, device=True),
    "launch": _only("graph", passes_as_graphs, doubt=0.2, device=True),
    "stalls": _only("off", without_stalls),
    "allocator": _only("off", without_allocator),
    "copies": _copies,
    "recompute": _recompute,
    FAMILY: _kernel,
    "microbatches": _microbatches,
    "accumulation": _fix("no_sync", "redundant-communication"),
    "optimizer": _fix("fused", "optimizer"),
    "precision": _fix("16bit", "precision"),
    "attention": _fix("fused", "memory-bound-attention"),
    "kernels": _fix("fused", "memory-bound-kernels"),
    "scaler": _fix("off", "mixed-precision-overhead"),
    "experts": _fix("even", "expert-imbalance"),
    "links": _fix("even", "slow-link"),
}


@dataclass(frozen=True)
class Answer:
    """What the step would take with some settings."""

    #: as `predict` returns it
    prediction: Row
    #: the step as it was measured: unprofiled where known
    measured_ns: float | None
    notes: tuple[str, ...]

    @property
    def saving_ms(self) -> float:
        """Return the predicted saving per step, against the replay of the step as recorded."""
        return (self.prediction.baseline_ns - self.prediction.step_ns) / NS_PER_MS

    @property
    def saving_range_ms(self) -> tuple[float, float]:
        """Return the range in which `saving_ms` is likely to be."""
        found = self.prediction
        return (found.baseline_ns - found.high_ns) / NS_PER_MS, (found.baseline_ns - found.low_ns) / NS_PER_MS

    @property
    def saving_pct(self) -> float:
        """Return the saving in percent of the step."""
        whole_ns = self.measured_ns or self.prediction.baseline_ns
        return 100 * self.saving_ms * NS_PER_MS / whole_ns if whole_ns else 0.0

    def __str__(self) -> str:
        step_ms, verb = (self.measured_ns or self.prediction.baseline_ns) / NS_PER_MS, "saves"
        low, high = self.saving_range_ms
        if self.saving_ms < 0:
            verb, low, high = "costs", -high, -low
        much = f"{abs(self.saving_ms):.1f} of {step_ms:.1f} ms per step ({abs(self.saving_pct):.0f} %)"
        return f"{' '.join(self.prediction.changes)} {verb} {much}, likely {low:.1f} to {high:.1f} ms"

    def __repr__(self) -> str:
        return f"<Answer: {self}>"


def what_if(
    account: Account,
    texts: Sequence[str] = (),
    *,
    without: Sequence[str] = (),
    scale: Sequence[str] = (),
    ranks: Sequence[int] | None = None,
) -> Answer:
    """Return the predicted step with all these settings (`KEY=VALUE`) applied in order, then without some owners
    (`train.py:42`, `module:GLOB`) or with their time scaled (`OWNER=FACTOR`), on all ranks or on some.
    """
    owners = [*map(without_owner, without), *map(_scaled_owner, scale)]
    made = [_setting_of(account, text) for text in texts]
    made += [owner_setting(account, owner, ranks=ranks) for owner in owners]
    names = [*texts, *(owner.label for owner in owners)]
    if account.replay is None:
        raise InputError(
            "nothing to replay: there is no step that all ranks recorded and that launches work; record steps "
            "(profiler.step() in the loop, or stepscope record)"
        )
    step_ns = account.step.step_ns if account.step else None
    changes = [(name, m.fix) for name, m in zip(names, made, strict=True)]
    replay = account.owned_replay or account.replay
    try:
        found = predict(replay, changes, step_ns=step_ns)
    except CircularWaits as error:
        raise InputError(f"cannot replay {' '.join(names)}: {error}; try the settings one by one") from error
    notes = [m.note for m in made if m.note] + _far_off(replay, step_ns) + _not_replayed(account, found)
    return Answer(found, step_ns, tuple(notes))


def _setting_of(account: Account, text: str) -> SettingChange:
    key, _, value = text.partition("=")
    name = FAMILY if key.startswith("kernel:") else key
    setting = next((s for s in SETTINGS if s.key == name), None)
    if setting is not None and not value:
        raise InvalidValueError(f"{text}: a value is missing; write {setting.key}={setting.values}")
    if setting is None:
        known = {s.key: f"{s.key}={s.values}" for s in SETTINGS}
        near = did_you_mean(key, known)
        raise UnknownNameError(
            f"{text}: unknown setting; {near if '?' in near else did_you_mean(text, known.values())}"
        )
    finding = FINDING_OF_SETTING.get(text)
    found = fix_of(account, finding) if finding is not None else None
    return MAKERS[setting.key](SettingRequest(account, key, value)) if found is None else _made_of(found)


def _not_replayed(account: Account, found: Row) -> list[str]:
    missing = [r.rank for r in account.run.ranks if r.rank not in found.rank_step_ns]
    return [f"no prediction for rank {rank_ranges(missing)}: none of these steps was recorded there"] if missing else []


def _far_off(replay: Replay, step_ns: float | None) -> list[str]:
    off = replay.period_ns / step_ns - 1 if step_ns else 0.0
    if abs(off) < 0.15:
        return []
    scaled = " (savings are scaled to it)" if off > 0 else ""
    return [f"the replay is {100 * off:+.0f} % off the measured step{scaled}: trust the direction, not the number"]
