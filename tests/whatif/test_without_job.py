"""A real job of two ranks: what was planted is owned by its line, and taken out with it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.limits import HANG_S
from tests.made_once import made_once
from tests.two_ranks import on_two_ranks

from stepscope.analysis import Analysis, load
from stepscope.analyze.ownership import owner_name
from stepscope.analyze.replay.removal import part_of
from stepscope.whatif.settings import owner_setting, without_owner

pytestmark = pytest.mark.job
SCRIPT = Path(__file__).with_name("planted_lines_job.py")
STEPS = range(10, 14)
PARAMETERS = 4


def line_of(what: str) -> str:
    """Return the owner's name of a planted line."""
    lines = SCRIPT.read_text().splitlines()
    return f"{SCRIPT.name}:{next(i for i, text in enumerate(lines, 1) if text.endswith(f'# planted: {what}'))}"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return load(made_once(tmp_path_factory, "lines", record_job) / "run")


def record_job(folder: Path) -> None:
    out = folder / "run"
    steps = f"{STEPS.start}:{STEPS.stop}"
    record = [sys.executable, "-m", "stepscope", "record", "--out", str(out), "--steps", steps, "--"]
    subprocess.run([*record, *on_two_ranks(SCRIPT, 30)], check=True, timeout=HANG_S, capture_output=True)


def test_every_operator_has_its_counterpart_and_nearly_all_time_a_line(recorded: Analysis) -> None:
    shares = [one.matched_share for one in recorded.account.ownership if one is not None]
    assert len(shares) == 2
    assert min(share or 0 for share in shares) > 0.95
    code = recorded.account.code
    assert code is not None and code.exact_lines
    assert code.unowned_host_share is not None and code.unowned_host_share < 0.05
    assert code.unowned_device_share is not None and code.unowned_device_share < 0.05


def test_planted_lines_cost_something_and_modules_are_paths(recorded: Analysis) -> None:
    assert recorded.account.code is not None
    lines = {line.owner: line for line in recorded.account.code.lines}
    assert lines[line_of("statistic")].own.host_ns > 0
    assert lines[line_of("call")].inclusive.host_ns >= lines[line_of("statistic")].inclusive.host_ns
    if not recorded.document["step"]["starved"]:  # on the clock of free cores short nodes of backward may have no time
        assert lines[line_of("forward")].backward.host_ns > 0
    assert lines[line_of("reduces")].inclusive.comm_ns > 0
    assert lines[line_of("forward")].inclusive.comm_ns == 0  # buckets are of no forward line
    assert lines[line_of("backward")].inclusive.comm_ns > 0
    assert {"up", "down"} <= {module.module for module in recorded.account.code.modules}


def test_the_collectives_of_a_line_go_with_it_on_all_ranks(recorded: Analysis) -> None:
    account = recorded.account
    known = [one for one in account.ownership if one is not None]
    name = owner_name(line_of("reduces"), known)
    parts = [part_of(one, name) for one in known]
    for one, part in zip(known, parts, strict=True):
        in_steps = one.rank.collectives.step >= 0
        assert int((part.collectives & in_steps).sum()) == PARAMETERS * len(STEPS)
    before = account.owned_replay
    assert before is not None
    after = owner_setting(account, without_owner(line_of("reduces"))).change(before)
    for one, part, old, new in zip(known, parts, before.programs, after.programs, strict=True):
        gone = part.collectives[old.device_index]
        assert one.rank.rank in (0, 1)
        assert (new.duration_ns[gone] == 0).all()
        assert np.array_equal(new.duration_ns[~gone], old.duration_ns[~gone])
        assert new.host.own_ns.sum() < old.host.own_ns.sum()
    assert len(before.meetings) - len(after.meetings) == PARAMETERS * len(before.steps)
    assert after.period_ns < before.period_ns


def test_a_statistic_takes_its_host_time_with_it_and_no_collective(recorded: Analysis) -> None:
    account = recorded.account
    before = account.owned_replay
    assert before is not None
    after = owner_setting(account, without_owner(line_of("call"))).change(before)
    for old, new in zip(before.programs, after.programs, strict=True):
        assert np.array_equal(old.duration_ns, new.duration_ns)
        assert new.host.own_ns.sum() < old.host.own_ns.sum()
    assert len(after.meetings) == len(before.meetings)
