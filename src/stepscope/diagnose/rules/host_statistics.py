"""`host-device-sync` by line: what is computed for the host alone, in every step."""

from stepscope.analyze.account import Account
from stepscope.analyze.owners.line_work import LineWork, RankLines
from stepscope.analyze.owners.stacks import Line
from stepscope.diagnose.finding import Candidate, Evidence
from stepscope.diagnose.owned_change import at, lines_on_all, ranks_with, without_lines
from stepscope.diagnose.rules.measures import host_ms


def host_statistics(account: Account) -> list[Candidate]:
    """Return lines that bring results to the host, and to nothing else: statistics and logs."""
    return [_candidate(account, line) for line in lines_on_all(account, _is_statistic)]


def _is_statistic(rank: RankLines, work: LineWork) -> bool:
    """Return whether a line ends on the host: it changes no tensor, no gradient comes of it, nobody else gets it."""
    return work.apart and work.to_host > 0 and not work.in_place and not work.collectives


def _candidate(account: Account, line: Line) -> Candidate:
    place = f"{line[0]}:{line[1]}"
    copies, took, steps = 0, 0, 0
    for known in ranks_with(account, line):
        copies += known.lines[line].to_host
        took += known.lines[line].device_ns
        steps += max(len(known.owned.rank.steps), 1)
    return Candidate(
        id="host-device-sync",
        title=f"{place} brings results to the host in every step",
        cause=f"the host waits in {place} for {copies / steps:.0f} copies per step and computes with them; no gradient, "
        "parameter or input of the device comes of it",
        remedy="Do it every N steps, or reduce on the device and copy one number later (non_blocking). The saving is "
        "of the step without this line.",
        change=without_lines(account, [line]),
        evidence=(
            Evidence("copies to the host per step", round(copies / steps, 1), "copies", place),
            Evidence("device time of the line per step", host_ms(took / steps), "ms", place),
        ),
        where=(at(line),),
        what_if=("--without", place),
        subject=f"bringing results to the host ({place})",
    )
