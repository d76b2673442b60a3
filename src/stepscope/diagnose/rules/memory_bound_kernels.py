"""`memory-bound-kernels`: consecutive elementwise and normalisation kernels, each of which reads and writes memory."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepscope.analyze.account import Account
from stepscope.analyze.kernels.backward_work import parameter_gradients
from stepscope.analyze.kernels.call_costs import FAMILY_CODE
from stepscope.analyze.kernels.kernel_costs import KernelCosts
from stepscope.analyze.replay.changes import Change, with_work_times
from stepscope.analyze.replay.fusion import fused_chains
from stepscope.analyze.replay.replay import Replay
from stepscope.cost.operators.families import Family
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.rules.convolution_layout import conversions
from stepscope.diagnose.rules.measures import Mask, device_ms
from stepscope.records import once_per_record
from stepscope.run.each_rank import each_rank
from stepscope.stats.distinct import among
from stepscope.trace.classify import EventKind

_FUSIBLE = [FAMILY_CODE[f] for f in (Family.ELEMENTWISE, Family.NORMALISATION, Family.COPY, Family.REDUCTION)]


_LAUNCH_DOUBT, _LAUNCH_SURENESS = 1.0, 0.5
"""where the host limits the step: what fusing does to its time no trace tells"""
_MIN_GAP = 0.05
"""of the step in which the device waits for launches: below it time on the device is what counts"""
_HOST_LIMITS = "the host is what limits the step; only the device's time is counted: compiled code launches less, but how fast is not known"


def memory_bound_kernels(account: Account) -> list[Candidate]:
    """Return runs of fusible kernels, fused into one pass each."""
    fusible = [
        among(v.costs.family, _FUSIBLE)
        & (v.rank.work.kind == EventKind.KERNEL)
        & (v.rank.work.step >= 0)
        & ~conversions(v.rank)  # parts of a library's convolution
        for v in account.ranks
    ]
    gradients = each_rank(account.run, lambda _, rank: parameter_gradients(rank))
    beside = [mask & leaf for mask, leaf in zip(fusible, gradients, strict=True)]
    chosen = [mask & ~leaf for mask, leaf in zip(fusible, beside, strict=True)]
    spent = device_ms(account, chosen)
    if not spent:
        return []
    fused = [_fused_ns(v.costs, mask, leaf) for v, mask, leaf in zip(account.ranks, chosen, beside, strict=True)]
    times, leads = [f[0] for f in fused], [f[1] for f in fused]

    @once_per_record
    def fuse(replay: Replay) -> Replay:
        return fused_chains(replay, chosen, times, leads)

    @once_per_record
    def fuse_on_device(replay: Replay) -> Replay:
        return with_work_times(replay, chosen, times)

    by_launches = _by_launches(account, fuse, fuse_on_device)
    removed_ns = _removed_ns(account, chosen, times)
    if not by_launches and account.step:
        removed_ns += account.step.ns("launch_gap")  # of launches there are fewer
    return [
        Candidate(
            id="memory-bound-kernels",
            title="Consecutive elementwise kernels are not fused",
            cause="each reads its inputs from memory and writes its result back for the next"
            + (f"; {_HOST_LIMITS}" if by_launches else ""),
            remedy="torch.compile(model) fuses them; or use fused layers (fused norms, fused SwiGLU). The saving is of each run of such "
            "kernels as one launch and one pass over its largest one.",
            change=fuse_on_device if by_launches else fuse,
            limit_ns=min(spent * 1e6, removed_ns),
            claim="fused kernels",
            cost_ns=spent * 1e6,
            evidence=(Evidence("elementwise and normalisation kernels per step", round(spent, 3), "ms", "mean rank"),),
            doubt=_LAUNCH_DOUBT if by_launches else 0.5,
            sureness=_LAUNCH_SURENESS if by_launches else 0.7,
        )
    ]


def _by_launches(account: Account, fuse: Change, fuse_on_device: Change) -> bool:
    """Return whether less than half of what fusing saves would come of the device's time alone."""
    replay, step = account.owned_replay, account.step
    if replay is None or step is None or step.ns("launch_gap") < _MIN_GAP * step.step_ns:
        return False
    saves = replay.period_ns - fuse(replay).period_ns
    if not saves > 0:
        return False
    on_device = replay.period_ns - fuse_on_device(replay).period_ns
    return bool(on_device < MIN_MOSTLY * saves)


def _removed_ns(account: Account, chosen: Sequence[Mask], fused: Sequence[npt.NDArray[np.float64]]) -> float:
    """Return what fusing can remove per step: the kernels' time beyond that of the fused ones, mean over ranks."""
    removed = [
        (view.costs.duration_ns - after)[mask].sum() / max(len(view.rank.steps), 1)
        for view, mask, after in zip(account.ranks, chosen, fused, strict=True)
    ]
    return float(np.mean(removed))


def _fused_ns(costs: KernelCosts, mask: Mask, beside: Mask) -> tuple[npt.NDArray[np.float64], Mask]:
    """Return times in which each run of consecutive chosen kernels takes what its longest one takes, and which
    kernels are the first of their run: the fused one is launched there.

    What is `beside` a run, gradients of parameters that no other kernel reads, neither joins nor ends it.
    """
    work = costs.rank.work
    order = np.lexsort((work.stream, work.device))  # and by start, as it is
    order = order[~beside[order]]
    joins = mask[order]
    begins = joins.copy()
    begins[1:] &= ~joins[:-1]
    out, first = costs.duration_ns.astype(float), np.zeros(len(mask), bool)
    first[order[np.flatnonzero(begins)]] = True
    joined = order[np.flatnonzero(joins)]
    starts, duration = np.flatnonzero(first[joined]), out[joined]
    longest, total = np.maximum.reduceat(duration, starts), np.add.reduceat(duration, starts)
    share = np.where(total > 0, longest / np.maximum(total, 1), 1.0)
    out[joined] = duration * np.repeat(share, np.diff(starts, append=len(joined)))
    return out, first
