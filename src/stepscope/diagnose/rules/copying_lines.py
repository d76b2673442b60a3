"""`host-to-device-copy` by line: a line whose copies to the device come with stalls of the host.

Large batches in pageable memory cost the host beside the copy: it moves the data into a buffer that the device can
read, and gives the memory back when the batch is dropped. Those stalls go with the copies: one line, one finding. A line
that stalls for longer than it copies has another cause.
"""

import numpy as np

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.analyze.replay.owners.part import part_for
from stepscope.analyze.replay.owners.removal import recorded_host
from stepscope.analyze.replay.program import Program
from stepscope.analyze.replay.replay import Replay
from stepscope.diagnose.finding import MIN_MOSTLY, Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, without_lines
from stepscope.diagnose.rules.measures import device_ms, host_ms, transfers_to_device

_MIN_SHARE = 0.05
"""of the step: of the copies and of the stalls each"""


def copying_lines(account: Account) -> list[Candidate]:
    """Return the line that holds most of the copies to the device and most of the host's stalls."""
    replay, step = account.replay, account.step
    if replay is None or step is None or not step.step_ns:
        return []
    least = _MIN_SHARE * step.step_ns
    whole_copies = device_ms(account, transfers_to_device(account)) * 1e6
    found = []
    for line in lines_on_all(account, _only_copies):
        ranks = zip(account.line_work, replay.programs, strict=True)
        stalled, all_stalls = np.mean([_stalled_ns(k, p, replay, line) for k, p in ranks], axis=0).tolist()
        share = _copied_share(account, line)
        copied = share * whole_copies
        mostly = share >= MIN_MOSTLY and stalled >= MIN_MOSTLY * all_stalls
        if mostly and min(copied, stalled) >= least and copied >= MIN_MOSTLY * stalled:
            found.append(_candidate(account, line, copied, stalled))
    return found


def _only_copies(_: RankLines, work: LineWork) -> bool:
    """Return whether a line brings data to the device and does nothing of the training itself."""
    return work.to_device > 0 and not (work.has_backward or work.optimizes or work.modules or work.collectives)


def _copied_share(account: Account, line: Line) -> float:
    """Return how much of the time of copies to the device is a line's, all ranks together."""
    mine = whole = 0
    for known, mask in zip(account.line_work, transfers_to_device(account), strict=True):
        if known is None:
            continue
        work = known.owned.rank.work
        took = (work.end_ns - work.start_ns) * (mask & (work.step >= 0))
        whole += int(took.sum())
        if line in known.lines:
            mine += int(took[known.holding(line)[known.owned.by_work.stack]].sum())
    return mine / whole if whole else 0.0


def _stalled_ns(known: RankLines | None, program: Program, replay: Replay, line: Line) -> tuple[float, float]:
    """Return how long a rank's host stalls per step, in a line and in all."""
    if known is None or not len(program):
        return 0.0, 0.0
    edges, did = recorded_host(known.owned.rank, program, replay.steps)
    whole = float(did.parts(edges[:-1], edges[1:]).stall_ns.sum())
    if line not in known.lines:
        return 0.0, whole / len(replay.steps)
    holds = known.holding(line)
    part = part_for(known.owned, lambda _, things: holds[things.stack])
    mine = float(did.parts_within(part.host, edges[:-1], edges[1:]).stall_ns.sum())
    return mine / len(replay.steps), whole / len(replay.steps)


def _candidate(account: Account, line: Line, copied_ns: float, stalled_ns: float) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    return Candidate(
        id="host-to-device-copy",
        title=f"{place} copies to the device, and the host stalls there",
        cause="the step waits for these copies, and beside them the host launches nothing for at least a millisecond at a "
        "time; with large batches in pageable memory, moving them and giving their memory back is the usual reason",
        remedy="pin_memory=True in the DataLoader and tensor.to(device, non_blocking=True), one batch ahead on a stream of its "
        "own; send smaller types and convert on the device. The saving is of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("host-to-device copies of the line per step", host_ms(copied_ns), "ms", place),
            Evidence("stalled host time in the line per step", host_ms(stalled_ns), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"copying to the device ({place})",
    )
