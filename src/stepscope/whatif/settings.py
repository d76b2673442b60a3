"""Changes to a run by name: what `stepscope whatif --set KEY=VALUE` understands.

    account = account_of(load("run-folder"))
    what_if(account, ["straggler=off", "network=2x"]).prediction.step_ns

A setting that a finding proposes (`optimizer=fused`) saves what the finding says: both are the same change.
"""

from collections.abc import Sequence

from stepscope.analyze.account import Account
from stepscope.analyze.replay.changes import (
    as_graph,
    evenly_spread,
    without_allocator,
    without_data_wait,
    without_stalls,
    without_syncs,
)
from stepscope.analyze.replay.graph import CircularWaits
from stepscope.analyze.replay.predicted_step import Prediction, predict
from stepscope.analyze.replay.replay import Replay
from stepscope.dataclass import dataclass
from stepscope.diagnose.setting_of_finding import FINDING_OF_SETTING
from stepscope.errors import InputError, UsageError
from stepscope.run.quality import rank_ranges
from stepscope.whatif import setting_changes as make
from stepscope.whatif.keys import FAMILY, SETTINGS
from stepscope.whatif.setting_changes import Maker, SettingChange, SettingRequest, fix, made_of, only
from stepscope.whatif.without import owner_setting, scaled_owner, without_owner

_FAR_OFF = 0.15


MAKERS: dict[str, Maker] = {
    "straggler": make.straggler,
    "load": only("even", evenly_spread, doubt=0.3),
    "overlap": make.overlap,
    "network": make.network,
    "bytes": make.fewer,
    "bucket_mb": make.bucket_mb,
    "data": only("instant", without_data_wait),
    "sync": only("off", without_syncs, doubt=0.3, device=True),
    "launch": only("graph", as_graph, doubt=0.2, device=True),
    "stalls": only("off", without_stalls),
    "allocator": only("off", without_allocator),
    "copies": make.copies,
    "recompute": make.recompute,
    FAMILY: make.kernel,
    "microbatches": make.microbatches,
    "accumulation": fix("no_sync", "redundant-communication"),
    "optimizer": fix("fused", "optimizer"),
    "precision": fix("16bit", "precision"),
    "attention": fix("fused", "memory-bound-attention"),
    "kernels": fix("fused", "memory-bound-kernels"),
    "scaler": fix("off", "mixed-precision-overhead"),
    "experts": fix("even", "expert-imbalance"),
    "links": fix("even", "slow-link"),
}
"""the change that each key of `SETTINGS` stands for"""


@dataclass(frozen=True)
class Answer:
    """What the step would take with some settings."""

    prediction: Prediction
    measured_ns: float | None
    """the step as it was measured: unprofiled where known"""
    notes: tuple[str, ...]


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
    owners = [*map(without_owner, without), *map(scaled_owner, scale)]
    made = [setting_of(account, text) for text in texts]
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


def setting_of(account: Account, text: str) -> SettingChange:
    """Return the change that `KEY=VALUE` stands for; a `UsageError` that says what there is for anything else."""
    key, _, value = text.partition("=")
    name = FAMILY if key.startswith("kernel:") else key
    setting = next((s for s in SETTINGS if s.key == name), None)
    if setting is not None and not value:
        raise UsageError(f"--set {text}: a value is missing; write {setting.key}={setting.values}")
    if setting is None:
        known = ", ".join(f"{s.key}={s.values}" for s in SETTINGS)
        raise UsageError(f"--set {text}: there is no such setting; use one of {known}")
    finding = FINDING_OF_SETTING.get(text)
    found = None
    if finding is not None:
        from stepscope.whatif.fixes import fix_of  # all rules, only where a setting is the fix of a finding

        found = fix_of(account, finding)
    return MAKERS[setting.key](SettingRequest(account, key, value)) if found is None else made_of(found)


def _not_replayed(account: Account, found: Prediction) -> list[str]:
    """Return which ranks have no prediction of their own, and why."""
    missing = [r.rank for r in account.run.ranks if r.rank not in found.rank_step_ns]
    return [f"no prediction for rank {rank_ranges(missing)}: none of these steps was recorded there"] if missing else []


def _far_off(replay: Replay, step_ns: float | None) -> list[str]:
    """Return a warning where the replay without any change is far from the measured step."""
    off = replay.period_ns / step_ns - 1 if step_ns else 0.0
    if abs(off) < _FAR_OFF:
        return []
    scaled = " (savings are scaled to it)" if off > 0 else ""
    return [f"the replay is {100 * off:+.0f} % off the measured step{scaled}: trust the direction, not the number"]
