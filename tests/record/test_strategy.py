"""How a job is spread over its ranks, guessed from its objects."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.job


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    job = Path(__file__).with_name("strategy_job.py")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(job)], capture_output=True, text=True, check=True, env=environment)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("name", ["ddp", "zero1", "fsdp2", "hsdp", "fsdp2+tp", "tp"])
def test_strategy_is_recognised(found: dict[str, Any], name: str) -> None:
    assert found[name] == name


def test_compiled_ddp_is_ddp_and_a_bare_model_is_unknown(found: dict[str, Any]) -> None:
    assert found["compiled"] == "ddp" and found["plain"] is None


def test_ranks_that_share_a_replica(found: dict[str, Any]) -> None:
    assert found["replicas"] == [1, 1, 2]
