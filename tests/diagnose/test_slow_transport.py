"""NCCL's log shows a slow transport: the finding says which, why and on which ranks; a good one says nothing."""

from pathlib import Path

import pytest
from tests.run.together import Job

from stepscope.analyze.account import account_of
from stepscope.contract.run_folder import rank_file
from stepscope.diagnose.findings import diagnose
from stepscope.document.report import report_json
from stepscope.run.load import load

RECORDED = Path(__file__).parents[1] / "data" / "nccl_logs"
HEAD = "h:1:1 [0] NCCL INFO "


def report(folder: Path, *texts: str, log: bytes | None = None) -> dict:
    Job(ranks=2, steps=3).run(folder)
    for rank in range(2):
        content = log or "".join(f"{HEAD}{text}\n" for text in texts).encode()
        (folder / rank_file(rank, "nccl.log")).write_bytes(content)
    account = account_of(load(folder))
    return report_json(account, diagnose(account))


def links(found: dict) -> list[dict]:
    return [f for f in found["findings"] if f["id"] == "slow-link"]


ONE_NODE = "comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0"
TWO_NODES = "comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0"
SET = "set by environment to 1"
VIA = "Channel 00/0 : 0[0] -> 1[1] via "


@pytest.mark.parametrize(
    ("texts", "title", "cause"),
    [
        ((TWO_NODES, f"{VIA}NET/Socket/0"), "over sockets instead of InfiniBand", "does not show why"),
        (
            (TWO_NODES, f"{VIA}NET/Socket/0", "NCCL_IB_DISABLE set by environment to 1."),
            "over sockets instead of InfiniBand",
            "switched off by NCCL_IB_DISABLE=1",
        ),
        ((ONE_NODE, f"{VIA}NET/IB/0"), "of one machine talk over the network", "does not show why"),
        ((ONE_NODE, "+ NVL[20.0] - GPU/1", f"{VIA}SHM/direct/direct"), "do not reach each other directly", "why"),
        ((ONE_NODE, f"{VIA}SHM/direct", f"NCCL_P2P_DISABLE {SET}"), "do not reach each", "P2P_DISABLE=1"),
        ((ONE_NODE, f"{VIA}NET/Socket/0", f"NCCL_SHM_DISABLE {SET}"), "is switched off", "SHM_DISABLE=1"),
    ],
)  # fmt: skip
def test_slow_transport_is_found(tmp_path: Path, texts: tuple[str, ...], title: str, cause: str) -> None:
    (finding,) = links(report(tmp_path, *texts))
    assert title in finding["title"] and cause in finding["cause"] and finding["ranks"] == [0, 1]
    assert finding["saving_alone_ms"] == 0


@pytest.mark.parametrize(
    "texts",
    [
        (TWO_NODES, f"{VIA}NET/IB/0/GDRDMA"),
        (ONE_NODE, "+ NVL[20.0] - GPU/1", f"{VIA}P2P/CUMEM"),
        (ONE_NODE, f"{VIA}SHM/direct/direct"),
        (ONE_NODE, f"{VIA}P2P/CUMEM", "NCCL_P2P_DISABLE set by environment to 0"),
        (),
    ],
)
def test_good_transport_says_nothing(tmp_path: Path, texts: tuple[str, ...]) -> None:
    assert links(report(tmp_path, *texts)) == []


def test_recorded_log_gives_collectives_their_algorithm_and_transport(tmp_path: Path) -> None:
    found = report(tmp_path, log=(RECORDED / "nccl_vm_1059.log").read_bytes().replace(b"nranks 4", b"nranks 2"))
    (row,) = [r for r in found["collectives"] if r["op"] == "all_reduce"]
    assert row["nccl"]["choices"] == [{"algorithm": "TREE", "protocol": "LL", "channels": 1, "count": 2}]
    assert row["nccl"]["transports"] == ["NET/Socket"]
    assert "found no InfiniBand" in links(found)[0]["cause"]
