"""`recomputation`: a forward pass of the trained model whose result nothing is run back through."""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.loop_lines import stands_after_optimizer
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, ranks_with, without_lines
from stepscope.diagnose.rules.measures import host_ms

_MIN_TRAINED_SHARE = 0.5
"""of the modules below the line are trained in the same step: it is the model, not a frozen one beside it"""


def unused_forward(account: Account) -> list[Candidate]:
    """Return lines that run the trained modules once more, after the last backward or below the optimizer's line: no loss
    of the step has it.
    """
    return [_candidate(account, line) for line in lines_on_all(account, _is_unused)]


def _is_unused(rank: RankLines, work: LineWork) -> bool:
    if not work.apart or not work.modules or work.in_place:
        return False
    if len(work.modules & rank.trained) < _MIN_TRAINED_SHARE * len(work.modules):
        return False
    ran = work.last_ns > work.first_ns
    after = (work.first_ns[ran] > rank.backward_ns[ran]).all() or stands_after_optimizer(rank, work)
    return bool(ran.any() and after)


def _candidate(account: Account, line: Line) -> Candidate:
    took, modules = [], 0
    for known in ranks_with(account, line):
        took.append(known.lines[line].device_ns / max(len(known.owned.rank.steps), 1))
        modules = max(modules, len(known.lines[line].modules))
    place = f"{line[0]}:{line[1]}"
    return Candidate(
        id="recomputation",
        title=f"The model runs forward once more in {place}, with no backward",
        cause=f"{place} runs {modules} modules that are trained in the same step; nothing goes back through its result, "
        "and it comes after the loss: a metric or a log",
        remedy="Take the metric from the output of the training pass, or compute it every N steps. The saving is of "
        "the step without this line.",
        change=without_lines(account, [line]),
        cost_ns=float(np.mean(took)) or None,
        evidence=(
            Evidence("device work of the second forward pass per step", host_ms(float(np.mean(took))), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"a forward pass without backward ({place})",
    )
