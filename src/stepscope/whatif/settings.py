"""Changes to a run by name: what `stepscope whatif --set KEY=VALUE` understands.

    account = account_of(load("run-folder"))
    what_if(account, ["straggler=off", "network=2x"]).prediction.step_ns

A setting that a finding proposes (`optimizer=fused`) saves what the finding says: both are the same change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
from stepscope.analyze.replay.saving import Fix
from stepscope.diagnose.setting_of_finding import FINDING_OF_SETTING
from stepscope.errors import InputError, UsageError
from stepscope.run.quality import rank_ranges
from stepscope.whatif import setting_changes as make
from stepscope.whatif.fixes import fixes_of
from stepscope.whatif.setting_changes import Asked, Made, Maker, fix, made_of, only

_FAMILY = "kernel:FAMILY"
_FAR_OFF = 0.15


@dataclass(frozen=True)
class Setting:
    """One key, the values it takes and what it does."""

    key: str
    values: str
    what: str
    maker: Maker


SETTINGS = (
    Setting("straggler", "off|RANK,...", "late ranks, or these, as fast as the others' median", make.straggler),
    Setting("load", "even", "the same work spread evenly over the ranks", only("even", evenly_spread, doubt=0.3)),
    Setting("overlap", "perfect", "gradients sent while backward runs, in 4 MB pieces", make.overlap),
    Setting("network", "2x", "every transfer that many times as fast", make.network),
    Setting("bytes", "0.5x", "every collective moves that share of its bytes", make.fewer),
    Setting("bucket_mb", "25", "gradients in buckets of that many MB", make.bucket_mb),
    Setting("data", "instant", "every batch ready when it is asked for", only("instant", without_data_wait)),
    Setting("sync", "off", "the host never waits for the device", only("off", without_syncs, doubt=0.3, device=True)),
    Setting("launch", "graph", "each step launched as one graph", only("graph", as_graph, doubt=0.2, device=True)),
    Setting("stalls", "off", "no host stalls", only("off", without_stalls)),
    Setting("allocator", "off", "no calls for device memory", only("off", without_allocator)),
    Setting("copies", "hidden", "no time in copies between host and device", make.copies),
    Setting("recompute", "off", "no forward work repeated in backward", make.recompute),
    Setting(_FAMILY, "2x", "kernels of a family (gemm, attention, ...) that many times as fast", make.kernel),
    Setting("microbatches", "16", "that many micro-batches of a pipeline, same total work", make.microbatches),
    Setting("accumulation", "no_sync", "gradients synchronised once", fix("no_sync", "redundant-communication")),
    Setting("optimizer", "fused", "a fused optimizer", fix("fused", "optimizer")),
    Setting("precision", "16bit", "matrix products in 16 bit", fix("16bit", "precision")),
    Setting("attention", "fused", "fused attention", fix("fused", "memory-bound-attention")),
    Setting("kernels", "fused", "elementwise kernels in a row as one", fix("fused", "memory-bound-kernels")),
    Setting("scaler", "off", "no loss scaling", fix("off", "mixed-precision-overhead")),
    Setting("experts", "even", "tokens routed evenly", fix("even", "expert-imbalance")),
    Setting("links", "even", "slow groups as fast as their siblings", fix("even", "slow-link")),
)
"""every key that `--set` knows"""


@dataclass(frozen=True)
class Answer:
    """What the step would take with some settings."""

    prediction: Prediction
    measured_ns: float | None
    """the step as it was measured: unprofiled where known"""
    notes: tuple[str, ...]


def what_if(account: Account, texts: Sequence[str]) -> Answer:
    """Return the predicted step with all these settings (`KEY=VALUE`) applied in order."""
    fixes = fixes_of(account)
    made = [setting_of(account, text, fixes=fixes) for text in texts]
    if account.replay is None:
        raise InputError(
            "expected steps that all ranks recorded and that launch work, found none: nothing to replay; record steps "
            "(profiler.step() in the loop, or stepscope record)"
        )
    step_ns = account.step.step_ns if account.step else None
    changes = [(text, m.fix) for text, m in zip(texts, made, strict=True)]
    try:
        found = predict(account.replay, changes, step_ns=step_ns)
    except CircularWaits as error:
        raise InputError(f"cannot replay {' '.join(texts)}: {error}; try the settings one by one") from error
    notes = [m.note for m in made if m.note] + _far_off(account.replay, step_ns) + _not_replayed(account, found)
    return Answer(found, step_ns, tuple(notes))


def setting_of(account: Account, text: str, *, fixes: Mapping[str, Fix]) -> Made:
    """Return the change that `KEY=VALUE` stands for; a `UsageError` that says what there is for anything else."""
    key, _, value = text.partition("=")
    name = _FAMILY if key.startswith("kernel:") else key
    setting = next((s for s in SETTINGS if s.key == name), None)
    if setting is None or not value:
        known = ", ".join(f"{s.key}={s.values}" for s in SETTINGS)
        raise UsageError(f"--set: expected KEY=VALUE, one of {known}; found {text!r}")
    found = fixes.get(FINDING_OF_SETTING.get(text, ""))
    return setting.maker(Asked(account, key, value, fixes)) if found is None else made_of(found)


def _not_replayed(account: Account, found: Prediction) -> list[str]:
    """Return which ranks have no prediction of their own, and why."""
    missing = [r.rank for r in account.run.ranks if r.rank not in found.rank_step_ns]
    return [f"no prediction for rank {rank_ranges(missing)}: none of these steps was recorded there"] if missing else []


def _far_off(replay: Replay, step_ns: float | None) -> list[str]:
    """Return a warning where the replay without any change is far from the measured step."""
    off = replay.period_ns / step_ns - 1 if step_ns else 0.0
    if abs(off) < _FAR_OFF:
        return []
    return [f"the replay as recorded is {100 * off:+.0f} % off the measured step: trust the direction, not the number"]
