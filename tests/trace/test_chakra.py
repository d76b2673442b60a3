"""Chakra execution traces: what is written of a run is read as that run; nodes without a start run when they can."""

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.report.trace_processor import fields
from tests.trace.perfetto_files import message, number, text, varint

import stepscope
from stepscope.cli.main import main
from stepscope.errors import TraceError
from stepscope.trace.chakra import read_chakra
from stepscope.trace.table import EventKind, Trace, event_kinds

RUN = Path(__file__).parents[1] / "data" / "h200-hsdp"
COMPUTE, COLLECTIVE = 4, 7


def work(trace: Trace) -> Counter[tuple[str | None, int, int]]:
    kinds = (EventKind.KERNEL, EventKind.COMM_KERNEL, EventKind.COPY, EventKind.SET)
    rows = np.flatnonzero(np.isin(event_kinds(trace), kinds))
    columns = (trace["name"][rows], trace["ts_ns"][rows], trace["dur_ns"][rows])
    return Counter((trace.text(n), ts, dur) for n, ts, dur in zip(*(c.tolist() for c in columns), strict=True))


def node(own: int, name: str, us: int, *attrs: bytes, waits: tuple[int, ...] = (), kind: int = COMPUTE) -> bytes:
    packed = message(5, b"".join(map(varint, waits))) if waits else b""
    body = number(1, own) + text(2, name) + number(3, kind) + packed + number(7, us) + b"".join(attrs)
    return varint(len(body)) + body


def attr(name: str, field: int, value: int) -> bytes:
    return message(10, text(1, name), number(field, value))


def trace_file(path: Path, *nodes: bytes) -> Path:
    meta = text(1, "0.0.4")
    path.write_bytes(varint(len(meta)) + meta + b"".join(nodes))
    return path


def test_what_is_written_is_read_as_the_same_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(RUN), "--chakra", str(out)]) == 0
    original = stepscope.load(RUN)
    replay = original.account.replay
    assert replay is not None
    for index, rank in enumerate(original.run.ranks):
        (found,) = read_chakra(out / f"chakra.{rank.rank}.et")
        program = replay.programs[index]
        at = rank.work.row[program.device_index]
        columns = (rank.trace["name"][at], rank.trace["ts_ns"][at], rank.trace["dur_ns"][at])
        listed = zip(*(c.tolist() for c in columns), strict=True)
        assert work(found) == Counter((rank.trace.text(n), ts, dur) for n, ts, dur in listed)
    again = stepscope.load(out)
    assert [rank.rank for rank in again.run.ranks] == [rank.rank for rank in original.run.ranks]


def test_written_nodes_are_those_of_the_schema(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["export", str(RUN), "--chakra", str(out)]) == 0
    data, nodes = (out / "chakra.0.et").read_bytes(), []
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            byte = data[at]
            size, at, shift = size | (byte & 127) << shift, at + 1, shift + 7
            if byte < 128:
                break
        nodes.append(list(fields(data[at : at + size])))
        at += size
    assert nodes.pop(0) == [(1, b"0.0.4")]
    ids = [dict(of)[1] for of in nodes]
    assert ids == list(range(1, len(ids) + 1))
    kinds = Counter(dict(of)[3] for of in nodes)
    assert kinds[COLLECTIVE] and kinds[COMPUTE] > kinds[COLLECTIVE]
    for of in nodes:
        attrs = {dict(fields(v))[1]: list(fields(v))[1] for n, v in of if n == 10}
        assert attrs[b"is_cpu_op"][0] == 27
        if dict(of)[3] == COLLECTIVE:
            assert attrs[b"comm_type"][0] == attrs[b"comm_size"][0] == 9 and attrs[b"comm_size"][1] > 0


def test_nodes_without_a_start_run_when_they_can(tmp_path: Path) -> None:
    on_device, on_host = attr("is_cpu_op", 27, 0), attr("is_cpu_op", 27, 1)
    stream = attr("stream", 9, 7)
    path = trace_file(
        tmp_path / "chakra.3.et",
        node(1, "aten::mm(0)", 10, on_host, attr("tid", 9, 1)),
        node(2, "gemm", 50, on_device, stream, waits=(1,)),
        node(3, "aten::add(0)", 10, on_host, attr("tid", 9, 1), waits=(1,)),
        node(4, "add_kernel", 5, on_device, stream, waits=(3,)),  # its stream is busy until 60
        node(5, "ncclDevKernel_AllReduce", 8, on_device, attr("stream", 9, 9), attr("comm_type", 9, 0),
             attr("comm_size", 9, 4096), waits=(2, 3), kind=COLLECTIVE),
        node(6, "a", 1, on_host, waits=(7,)),
        node(7, "b", 1, on_host, waits=(6,)),
    )  # fmt: skip
    (found,) = read_chakra(path)
    assert work(found) == Counter(
        {("gemm", 10_000, 50_000): 1, ("add_kernel", 60_000, 5_000): 1, ("ncclDevKernel_AllReduce", 60_000, 8_000): 1}
    )
    assert found.header == {"distributedInfo": {"rank": 3}}
    assert any("2 nodes" in note for note in found.quality.notes)
    collectives = stepscope.load(path).run.ranks[0].collectives
    assert collectives.in_bytes.tolist() == [4096] and len(collectives.groups)


def hostile() -> dict[str, Any]:
    loop = node(1, "x", 5, attr("is_cpu_op", 27, 0), waits=(1,))
    return {
        "a node that waits for itself": (loop, None),
        "a length beyond the file": (loop + varint(1 << 40), None),
        "numbers beyond 64 bits": (node(1, "x", (1 << 64) - 1, attr("stream", 9, (1 << 64) - 1)), None),
        "no nodes": (b"", "no nodes"),
        "zeros": (bytes(1000), "no nodes"),
        "text": (b"nothing of this is a node " * 40, None),
    }


@pytest.mark.parametrize("what", hostile())
def test_hostile_execution_traces(tmp_path: Path, what: str) -> None:
    nodes, said = hostile()[what]
    path = trace_file(tmp_path / "chakra.0.et", nodes)
    try:
        found = read_chakra(path)[0]
    except TraceError as error:
        assert "\n" not in str(error) and (said is None or said in str(error))
    else:
        assert said is None and (found["dur_ns"] >= 0).all()


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    whole = gzip.decompress((RUN.parent / "chakra" / "chakra.0.et.gz").read_bytes())
    (path := tmp_path / "chakra.0.et").write_bytes(whole)
    everything = work(read_chakra(path)[0])
    path.write_bytes(whole[: len(whole) // 2])
    (cut,) = read_chakra(path)
    assert cut.quality.truncated and not work(cut) - everything and len(work(cut)) > 0.3 * len(everything)
