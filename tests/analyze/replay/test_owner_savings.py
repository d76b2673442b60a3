"""The savings beside lines are those of the what-if, and only lines that can be deleted have one."""

from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.analyze.owners.simulated import line_of, owned_run
from tests.analyze.simulate import SYNC, WAIT, collective, kernel, simulate

from stepscope.analysis import Analysis
from stepscope.analyze.account import account_of
from stepscope.analyze.replay.removal import MAX_REPLAYED

DEVICE_BOUND = [kernel(150, host_us=20) for _ in range(6)]


def test_a_line_saves_what_the_job_without_it_saves(tmp_path: Path) -> None:
    program = [*DEVICE_BOUND, kernel(900, host_us=20), SYNC, collective(400), WAIT]
    rest = [*DEVICE_BOUND, SYNC, collective(400), WAIT]
    account = account_of(owned_run(tmp_path, program, program))
    true_us = simulate(program, program).period_us - simulate(rest, rest).period_us
    assert account.line_savings[f"train.py:{line_of(6)}"] / 1000 == pytest.approx(true_us, rel=0.05)


def test_savings_are_those_of_the_what_if(tmp_path: Path) -> None:
    run = Analysis(owned_run(tmp_path, [*DEVICE_BOUND, kernel(700), SYNC]))
    for owner, saving_ns in run.account.line_savings.items():
        answer = run.without(owner).prediction
        assert saving_ns == pytest.approx(answer.baseline_ns - answer.step_ns)


def test_the_first_ten_lines_have_one(tmp_path: Path) -> None:
    program = [kernel(100 + 10 * k) for k in range(14)]
    account = account_of(owned_run(tmp_path, program))
    assert account.code is not None and len(account.code.lines) == 14
    assert list(account.line_savings) == [line.owner for line in account.code.lines[:MAX_REPLAYED]]


def test_a_line_around_the_whole_step_has_none(tmp_path: Path) -> None:
    account = account_of(owned_folder(tmp_path))
    assert "train.py:9" not in account.line_savings
    assert {"train.py:10", "train.py:12"} <= set(account.line_savings)
