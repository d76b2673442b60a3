"""The summary for people: readable on any terminal, and never steered by the names in a trace."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from tests.analyze.build import RankTrace, built_run
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.report.terminal import console, name_text, speaks_unicode
from stepscope.report.text.summary import print_ranks, print_summary
from stepscope.run.load import Run

STEP = [kernel(300), collective(500), kernel(200), WAIT, kernel(100), SYNC]


def summary(run: Run, *, out: Console | None = None, unprofiled_ms: float | None = None) -> str:
    account: Account = account_of(run, unprofiled_ms=unprofiled_ms)
    where = out or Console(file=io.StringIO(), width=120, highlight=False)
    print_summary(account, diagnose(account), where)
    return where.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return twelve ranks, of which the last is late."""
    programs = [STEP] * 11 + [[kernel(4300), *STEP[1:]]]
    return simulate(*programs, steps=3).aligned(tmp_path_factory.mktemp("late")).run


def test_late_rank_comes_first_and_is_marked(late: Run) -> None:
    said = summary(late)
    rows = [line for line in said.splitlines() if line.split() and line.split()[0].isdigit()]
    assert rows[0].split()[0] == "11"
    assert "(device)" in rows[0]
    assert len(rows) == 8
    assert "... and 4 more ranks with --json" in said


def test_what_to_fix_comes_with_its_saving(late: Run) -> None:
    said = summary(late)
    assert "What to fix first" in said
    assert "straggler: " in said
    assert "saves " in said


@pytest.mark.parametrize("width", [40, 200])
def test_any_width_is_readable(late: Run, width: int) -> None:
    said = summary(late, out=Console(file=io.StringIO(), width=width, highlight=False))
    assert max(map(len, said.splitlines())) <= width
    assert "straggler" in said


def test_ranks_keep_their_numbers_however_narrow_the_terminal(late: Run) -> None:
    account = account_of(late)
    for width in (40, 50, 60, 80, 100):
        out = Console(file=io.StringIO(), width=width, highlight=False, force_terminal=True, color_system=None)
        print_ranks(account, out)
        row = next(line for line in out.file.getvalue().splitlines() if line.startswith("11 "))  # type: ignore[attr-defined]
        assert "…" not in row
        assert "(device)" in row


def test_next_commands_name_the_run_and_the_first_fix(late: Run) -> None:
    where = Console(file=io.StringIO(), width=120, highlight=False)
    account = account_of(late)
    print_summary(account, diagnose(account), where, given=["my run", "--unprofiled-step-ms", "9"])
    said = where.file.getvalue()  # type: ignore[attr-defined]
    assert "next  stepscope whatif 'my run' --unprofiled-step-ms 9 --set straggler=off" in said
    assert "stepscope view 'my run'" in said


def test_output_without_unicode_gets_what_it_can_hold(late: Run) -> None:
    raw = io.BytesIO()
    out = console(io.TextIOWrapper(raw, encoding="ascii"))
    assert not speaks_unicode(out)
    account = account_of(late)
    print_summary(account, diagnose(account), out)
    out.file.flush()
    assert "straggler" in raw.getvalue().decode("ascii")


def test_names_are_neither_markup_nor_escapes(tmp_path: Path) -> None:
    hostile = "[bold red]x[/bold red] [/foo] \x1b]52;c;aGk=\x07 \u202e"
    traces = simulate([kernel(2000, name=hostile) for _ in range(3)], steps=3).traces
    place = tmp_path / "[red]run"
    place.mkdir()
    said = summary(built_run(place, traces))
    assert said.startswith("[red]run  1 rank")
    assert not {"\x1b", "\x07", "\u202e"} & set(said)
    assert str(name_text(hostile)).startswith("[bold red]x[/bold red] [/foo] \\x1b]52")


def test_trace_without_work_has_question_marks(tmp_path: Path) -> None:
    empty = RankTrace(1, world_size=2)
    empty.python("main.py(1): main", 0, 10)
    said = summary(built_run(tmp_path, [*simulate(STEP, STEP, steps=2).traces[:1], empty]))
    row = next(line for line in said.splitlines() if line.startswith("1 "))
    assert row.split() == ["1", *["?"] * 8]
