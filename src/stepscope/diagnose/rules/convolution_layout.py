"""`memory-bound-kernels`: convolutions convert the layout of what they are given, and back.

Libraries compute convolutions on matrix cores with channels last. Tensors that have channels first, torch's default,
are converted before every one of them and after it. Such a kernel says so by its name, and does nothing else.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.host.calls import Mask
from stepscope.analyze.replay.changes import without_work
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.rules.limits import with_work_ns
from stepscope.diagnose.rules.measures import device_ms
from stepscope.records import once_per_record
from stepscope.run.rank import Rank
from stepscope.trace.classify import EventKind, by_string

_CONVERTS = ("nchwtonhwc", "nhwctonchw", "ncdhwtondhwc", "ndhwctoncdhw")
_MIN_SHARE = 0.02
"""of the step: weights alone, converted in every step, are less"""


@once_per_record
def conversions(rank: Rank) -> Mask:
    """Return which kernels of a rank convert a layout, as a library does it."""
    named = by_string(rank.trace, rank.work.name, lambda s: any(name in s.lower() for name in _CONVERTS))
    return named.astype(bool) & (rank.work.kind == EventKind.KERNEL)


def convolution_layout(account: Account) -> list[Candidate]:
    """Return the conversions between channels first and last that libraries make around convolutions."""
    chosen = [conversions(rank) & (rank.work.step >= 0) for rank in account.run.ranks]
    spent_ns = device_ms(account, chosen) * 1e6
    if account.step is None or spent_ns < _MIN_SHARE * account.step.step_ns:
        return []
    launches = [m.sum() / max(len(r.steps), 1) for m, r in zip(chosen, account.run.ranks, strict=True)]
    return [
        Candidate(
            id="memory-bound-kernels",
            title="Convolutions convert the layout of their tensors",
            cause="they are computed with channels last, and what they are given has channels first: it is converted "
            "before each of them, and the result back",
            remedy="model.to(memory_format=torch.channels_last), and each batch too. The saving is of the step without these "
            "kernels alone; normalisation often gets faster besides.",
            change=lambda replay: without_work(replay, chosen),
            limit_ns=with_work_ns(account, spent_ns),
            claim="layout of convolutions",
            cost_ns=spent_ns,
            evidence=(
                Evidence("conversions per step", round(float(np.mean(launches))), "launches", "mean rank"),
                Evidence("their device time per step", round(spent_ns / 1e6, 3), "ms", "mean rank"),
            ),
            doubt=0.3,
            sureness=0.9,
            what_if=(),
            subject="converting the layout of tensors",
        )
    ]
