"""Communication within and between nodes, on two hosts of two ranks whose bandwidths are constructed."""

from typing import Any

import pytest
from tests.analyze.build import RankTrace, built_run

import stepscope
from stepscope.contract.run_folder import trace_file
from stepscope.record.helper.telemetry import network_speeds
from stepscope.report.summary import summary_text

HOST = ("a", "a", "b", "b")
PORTS = {"mlx5_0:1": 50.0, "mlx5_1:1": 50.0}


def job() -> list[RankTrace]:
    """Return four ranks with 1 MB each: 10 us within a host, 40 us and an exchange of 50 us between them, messages."""
    traces = []
    for rank in range(4):
        tp, dp = ((0, 1) if rank < 2 else (2, 3)), ((0, 2) if rank % 2 == 0 else (1, 3))
        trace = RankTrace(
            rank,
            world_size=4,
            groups={"tp": tp, "dp": dp, "pp": range(4)},
            descriptions={"tp": "mesh_tp", "dp": "mesh_dp", "pp": "mesh_pp"},
        )
        trace.step(0, 0, 1000)
        trace.collective("allreduce", at=50, start=100, end=110, elements=250_000, group="tp")
        shared = {"out_elements": 250_000, "group": "dp"}
        trace.collective("_allgather_base", at=150, start=200, end=240, elements=125_000, **shared)  # type: ignore[arg-type]
        trace.collective("alltoall_base", at=250, start=300, end=350, elements=250_000, group="pp")
        if rank in (0, 1):  # 0 to 1 on host a, then 1 to 2 on the other
            op, peer = ("send", 1) if rank == 0 else ("recv", 0)
            trace.collective(op, at=350, start=400, end=420, elements=250_000, group="pp", peer=peer)
        if rank in (1, 2):
            op, peer = ("send", 2) if rank == 1 else ("recv", 1)
            trace.collective(op, at=450, start=500, end=540, elements=250_000, group="pp", peer=peer)
        traces.append(trace)
    return traces


def facts(**more: Any) -> dict[str, Any]:
    return {"world_size": 4, "ranks": {str(r): {"host": HOST[r], **more} for r in range(4)}}


def test_each_group_is_held_against_the_link_of_its_hosts(tmp_path):
    built_run(tmp_path, job(), description=facts(network=PORTS))
    run = stepscope.load(tmp_path, cache=False)
    ops = {(c["op"], c["span"]): c["link_pct"] for c in run.document["collectives"]}
    assert ops == {
        ("all_reduce", "within nodes"): pytest.approx(100 * 100 / 450, abs=1e-3),  # NVLink 4
        ("all_gather", "between nodes"): pytest.approx(100 * 12.5 / 50),  # one of two ranks: half of two ports
        # 15 GB/s of bus bandwidth: two members per host each send 2/3 of it to the other one
        ("all_to_all", "between nodes"): pytest.approx(100 * 20 / 100),
        ("send", "within nodes"): pytest.approx(100 * 50 / 450, abs=1e-3),
        ("recv", "within nodes"): pytest.approx(100 * 50 / 450, abs=1e-3),
        ("send", "between nodes"): pytest.approx(100 * 25 / 50),
        ("recv", "between nodes"): pytest.approx(100 * 25 / 50),
    }
    found = {(r["span"], r["group"]): r for r in run.document["links"]}
    assert {key: (r["nodes"], r["group_size"], r["count"]) for key, r in found.items()} == {
        ("within nodes", "mesh_tp"): (1, 2, 1),
        ("between nodes", "mesh_dp"): (2, 2, 1),
        ("between nodes", "mesh_pp"): (2, 4, 3),
        ("within nodes", "mesh_pp"): (1, 4, 2),
    }
    assert found["between nodes", "mesh_dp"]["link"] == "network (mlx5_0:1, mlx5_1:1)"
    assert found["between nodes", "mesh_dp"]["transfer_ms"] == pytest.approx(0.04)
    assert {round(row["link_pct"], 1) for row in run.table("links")} >= {11.1, 22.2, 25.0}
    text = summary_text(run.document, verbose=True)
    assert "between nodes  mesh_dp  12.5 GB/s  50.0 GB/s" in text


@pytest.mark.parametrize("by", ["trace", "devices", "nothing"])
def test_nodes_of_foreign_traces(tmp_path, by):
    """Host names in the traces, or the devices of a machine that each trace lists; else nothing is claimed."""
    traces = job()
    for trace in traces:
        made = trace.document()
        header = {"trace": {"host_name": HOST[trace.rank]}, "nothing": {}}
        listed = [{"id": n, "name": trace.device} for n in range(2)]
        made |= {"deviceProperties": listed} if by == "devices" else header[by]
        trace.document = lambda made=made: made  # type: ignore[method-assign,misc]
    built_run(tmp_path, traces)
    rows = stepscope.load(tmp_path, cache=False).document["collectives"]
    spans = {(r["op"], r["span"]) for r in rows if r["op"] in ("all_reduce", "all_gather")}
    known = {("all_reduce", "within nodes"), ("all_gather", "between nodes")}
    assert spans == ({("all_reduce", None), ("all_gather", None)} if by == "nothing" else known)
    assert (tmp_path / trace_file(0)).exists()
    assert all(r["link_pct"] is None for r in rows if r["span"] != "within nodes"), "the network's speed is not known"


def test_ports_of_a_host(tmp_path):
    for name, speed, device in (("eth0", "25000\n", True), ("lo", "-1\n", False), ("eth1", "-1\n", True)):
        (tmp_path / "net" / name / ("device" if device else "")).mkdir(parents=True)
        (tmp_path / "net" / name / "speed").write_text(speed)
    assert network_speeds(tmp_path) == {"eth0": 3.125}
    for number, state in ((0, "4: ACTIVE\n"), (1, "1: DOWN\n")):
        port = tmp_path / "infiniband" / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "state").write_text(state)
    assert network_speeds(tmp_path) == {"mlx5_0:1": 50.0}
