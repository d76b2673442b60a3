"""NCCL's debug logs of every version from 2.14 to 2.30, real ones exactly, and logs of any size in bounded memory."""

from pathlib import Path

import pytest

from stepscope.records import Row
from stepscope.trace.nccl import nccl_log

RECORDED = Path(__file__).parents[2] / "data" / "nccl_logs"
VERSIONS = [f"2.{minor}" for minor in range(14, 31)]


def written(version: str) -> list[str]:
    """Return the lines of a rank of two as that version writes them."""
    minor = int(version.split(".")[1])
    ids = " nvmlDev 1 busId bb000 commId 0x5d5b3bbd1c8f9a3e" if minor >= 19 else " busId bb000"
    nranks = " [nranks=2]" if minor >= 15 else ""
    tuning = {
        **{minor: list[str]() for minor in range(14, 20)},
        **{minor: ["8388608 Bytes -> Algo 1 proto 2 time 54.7"] for minor in (20, 21, 22)},
        23: ["AllReduce: 8388608 Bytes -> Algo 1 proto 2 time 54.7"],
    }.get(minor, ["AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}"])
    timings = "Init timings - ncclCommInitRank: rank 1 nranks 2 total 2.46 (kernels 0.18, bootstrap 1.60, rest 0.00)"
    texts = [
        f"NCCL version {version}.3+cuda12.4",
        "NCCL_SOCKET_IFNAME set by environment to eth0",
        "Using network IB",
        "=== System : maxBw 24.0 totalBw 240.0 ===",
        "+ NVL[240.0] - NVS/0",
        "comm 0x55d0 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0",
        "Ring 00 : 0 -> 1 -> 0",
        "Channel 00/0 : 0[0] -> 1[1] via NET/IB/0/GDRDMA"
        if minor > 14
        else "Channel 00 : 0[1000] -> 1[bb000] via P2P/IPC",
        "24 coll channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer",
        f"comm 0x55d0 rank 1 nranks 2 cudaDev 1{ids} - Init COMPLETE",
        *([timings] if minor >= 19 else []),
        "AllReduce: opCount e sendbuff 0x7f10 recvbuff 0x7f20 count 2097152 datatype 7 op 0 root 0 comm 0x55d0"
        f"{nranks} stream 0x55aa",
        *tuning,
    ]
    stamp = "[2026-01-02 10:11:12] " if minor >= 26 else ""
    lines = [f"{stamp}node-7:441:477 [1] NCCL INFO {text}" for text in texts]
    return [*lines, f"{stamp}node-7:441:477 [1] misc/socket.cc:483 NCCL WARN Connection refused"]


@pytest.mark.parametrize("launcher", ["", "[0] ", "[rank1]: "])
@pytest.mark.parametrize("version", VERSIONS)
def test_lines_of_every_version(version: str, launcher: str) -> None:
    minor = int(version.split(".")[1])
    log = nccl_log((f"{launcher}{line}\n".encode() for line in written(version)), rank=1)
    assert log.version == f"{version}.3+cuda12.4" and log.host == "node-7" and log.network == "IB"
    assert (log.max_bw_gb_per_s, log.total_bw_gb_per_s, log.links) == (24.0, 240.0, {"NVL": 240.0})
    assert (log.num_ranks, log.num_nodes, log.local_ranks, log.num_rings, log.channels) == (2, 2, 1, 1, 24)
    assert log.transports == ({"NET/IB/GDRDMA": 1} if minor > 14 else {"P2P/IPC": 1})
    assert log.warnings == ("Connection refused",) and log.settings == {"NCCL_SOCKET_IFNAME": "eth0"}
    assert log.collectives == (Row(op="all_reduce", size_bytes=8388608, num_ranks=2, count=1),)
    (made,) = log.communicators
    assert (made.rank, made.num_ranks, made.device, made.bus_id) == (1, 2, 1, "bb000")
    if minor >= 19:
        assert made.id == "0x5d5b3bbd1c8f9a3e" and made.init_s == 2.46 and made.init_parts_s["bootstrap"] == 1.6
    else:
        assert made.id is None and made.init_s is None
    channels = 24 if minor >= 24 else None
    expected = (
        (Row(op="all_reduce", size_bytes=8388608, algorithm="RING", protocol="SIMPLE", channels=channels, count=1),)
        if minor >= 20
        else ()
    )
    assert log.choices == expected


def real(name: str, rank: int) -> Row:
    return nccl_log((RECORDED / name).read_bytes().splitlines(keepends=True), rank=rank)


def test_recorded_logs() -> None:
    logs = [real(f"nccl_vm_{1059 + rank}.log", rank) for rank in range(4)]
    for rank, log in enumerate(logs):
        assert log.version == "2.28.9+cuda13.0" and log.channels == 2 and log.network == "Socket"
        assert set(log.transports) == {"NET/Socket"} and log.num_ranks == 4 and log.num_nodes == 4
        assert (log.max_bw_gb_per_s, log.total_bw_gb_per_s) == (1.2, 48.0)
        assert [c.rank for c in log.communicators] == [rank] and log.communicators[0].init_s is not None
        assert log.infiniband_missing and log.collectives == (Row(op="all_reduce", size_bytes=4, num_ranks=4, count=1),)
    assert logs[0].choices == (
        Row(op="all_reduce", size_bytes=4, algorithm="TREE", protocol="LL", channels=1, count=1),
    )
    probe = real("probe_441.log", 0)
    assert probe.settings["NCCL_IB_DISABLE"] == "1" and probe.max_bw_gb_per_s is None
