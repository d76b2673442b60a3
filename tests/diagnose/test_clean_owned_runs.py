"""No line of a job without a fault is said to save more than 5 % of the step, whatever its shape."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.analyze.owners.simulated import owned_run
from tests.analyze.simulate import SYNC, WAIT, Op, collective, kernel
from tests.diagnose.test_owned_findings import account

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.rules import BY_OWNER

MOST_PCT = 5.0
LAYERS = [kernel(400) for _ in range(12)]
BACKWARD = [op for _ in range(6) for op in (kernel(800), collective(60))]

CLEAN: dict[str, list[Sequence[Op]]] = {
    "one rank": [LAYERS],
    "a loss read at the end": [[*LAYERS, SYNC]],
    "a quick loader": [[Op("data", 40), *LAYERS]],
    "short stretches of Python": [[op for layer in LAYERS for op in (layer, Op("stall", 30))]],
    "four micro-batches": [[op for _ in range(4) for op in LAYERS]],
    "data parallel": [[*LAYERS, *BACKWARD, WAIT, kernel(200)]] * 2,
    "ranks that differ by noise": [[kernel(400 + 8 * r), *LAYERS[1:], *BACKWARD, WAIT, kernel(200)] for r in range(4)],
}


def accusations(found: Account) -> list[tuple[str, str, float]]:
    findings = diagnose(found).findings
    return [(f.id, f.where[0].text, f.saving_pct) for f in findings if f.where and f.saving_pct > MOST_PCT]


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_no_line_of_a_clean_job_is_said_to_save_much(tmp_path: Path, name: str, jitter: float) -> None:
    run = owned_run(tmp_path / "run", *CLEAN[name], modules=("a", "b.0", "b.1"), steps=6, jitter=jitter, seed=7)
    found = account_of(run)
    assert any(found.ownership)
    assert accusations(found) == []
    assert [c.title for rule in BY_OWNER for c in rule(found)] == []


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_no_rule_by_owner_accuses_a_job_that_only_trains(tmp_path: Path, ranks: int) -> None:
    found = account(tmp_path, ranks=ranks)
    assert [c.title for rule in BY_OWNER for c in rule(found)] == []


def test_the_guard_sees_a_planted_line(tmp_path: Path) -> None:
    run = owned_run(tmp_path / "run", [Op("stall", 4000), *LAYERS, SYNC], steps=6)
    assert [(id_, where) for id_, where, _ in accusations(account_of(run))] == [("host-stall", "train.py:10")]
