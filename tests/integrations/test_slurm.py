"""Slurm's variables tell each task its rank and where the others are."""

import pytest

from stepscope.contract.run_folder import first_node
from stepscope.integrations.slurm import launcher_variables

TASK = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "41234"}


def test_task_becomes_a_rank() -> None:
    found = launcher_variables({**TASK, "SLURM_JOB_NODELIST": "gpu[07-09,12]"})
    assert found == {
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "MASTER_ADDR": "gpu07",
        "MASTER_PORT": "21234",
    }


def test_variables_of_torchrun_and_a_given_address_hold() -> None:
    assert launcher_variables({**TASK, "RANK": "0", "WORLD_SIZE": "2"}) == {}
    assert "MASTER_ADDR" not in launcher_variables({**TASK, "MASTER_ADDR": "elsewhere"})


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("login1", "login1"),
        ("a,b", "a"),
        ("gpu[3,7]", "gpu3"),
        ("gpu-a[001-064]-ib,b", "gpu-a001-ib"),
        ("rack2-n[10]", "rack2-n10"),
    ],
)
def test_first_node_of_a_short_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first
