"""Events that no profiler writes: a result or our own error, never anything else."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.run.together import Job

from stepscope.analyze.collective_costs import collective_rows, rank_account, rank_wait
from stepscope.analyze.replay.removal import critical_path
from stepscope.analyze.replay.replay import replay_of
from stepscope.analyze.stragglers import find_stragglers
from stepscope.errors import StepscopeError
from stepscope.run.aligned import aligned
from stepscope.run.load import load

CATEGORIES = [
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cpu_op",
    "user_annotation",
    "ac2g",
    "cpu_instant_event",
    "?",
]
NAMES = [
    "ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#99999999999999999999", "step_7", "training_step",
    "ncclDevKernel_AllReduce_Sum_f32", "ncclDevKernel_SendRecv", "gemm", "record_param_comms", "nccl:all_reduce",
    "nccl:coalesced", "cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamSynchronize", "cudaStreamWaitEvent",
    "cudaMalloc", "gloo:all_reduce", "gloo:send", "c10d::allreduce_", "c10d::send", "c10d::_reduce_scatter_base_",
    "aten::mm", "autograd::engine::evaluate_function: X", "enumerate(DataLoader)#_Iter.__next__", "[memory]", "",
    "\ud800",
]  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-5, 300), st.sampled_from([0, -1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 10**20, 0.5, 1e300])
)
TEXTS = st.sampled_from(
    ["allreduce", "send", "wait", "Float", "?", "0", "[0, 1]", "[0, 1, ..., 7]", "[" * 200, '{"a": 1}', "", "\x1b[0m"]
)
VALUES = st.one_of(
    NUMBERS, TEXTS, st.none(), st.booleans(), st.lists(st.lists(st.integers(-1, 9), max_size=3), max_size=3)
)
KEYS = st.sampled_from(
    [
        "correlation", "External id", "stream", "device", "Collective name", "In msg nelems", "Out msg nelems", "dtype",
        "Group size", "Process Group Name", "Process Group Description", "Process Group Ranks", "Global rank start",
        "Global rank stride", "Src Rank", "Dst Rank", "Input Dims", "Input type", "Concrete Inputs", "bytes",
    ]
)  # fmt: skip


MUTATION = st.tuples(
    st.integers(0, 2),
    st.integers(0, 10**6),
    st.sampled_from(["name", "cat", "ts", "dur", "tid", "args", "drop", "twice", "arg"]),
    st.sampled_from(NAMES),
    st.sampled_from(CATEGORIES),
    NUMBERS,
    KEYS,
    VALUES,
)


def mutate(document: dict[str, Any], mutation: tuple[Any, ...]) -> None:
    """Change one event of a good trace."""
    _, at, what, name, category, number, key, value = mutation
    events = document["traceEvents"]
    if not events:
        return
    event = events[at % len(events)]
    if what == "drop":
        events.remove(event)
    elif what == "twice":
        events.append({**event, "ts": number})
    elif what == "arg":
        args = event.get("args")
        event["args"] = {**(args if isinstance(args, dict) else {}), key: value}
    else:
        event[what] = {"name": name, "cat": category, "args": value}.get(what, number)


def analyse(folder: Path) -> None:
    run = load(folder, cache=False)
    shared = aligned(run)
    accounts = tuple(rank_account(r) for r in run.ranks)
    for index, account in enumerate(accounts):
        if account:
            wait = rank_wait(shared, index, account)
            assert (wait.transfer_ns or 0) >= 0
            assert 0 <= account.idle_ns <= account.window_ns
    collective_rows(shared, accounts)
    find_stragglers(shared)
    replay = replay_of(shared)
    if replay:
        critical_path(replay)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(MUTATION, min_size=1, max_size=40), st.booleans())
def test_mutated_job_ends_in_a_result_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, mutations: list[tuple[Any, ...]], whole: bool
) -> None:
    folder = tmp_path_factory.mktemp("mutated")
    documents = [t.document() for t in Job(ranks=3, steps=2).traces()]
    for mutation in mutations:
        mutate(documents[mutation[0]], mutation)
    for k, document in enumerate(documents):
        text = json.dumps(document)
        (folder / f"rank{k}.json").write_text(text if whole or k else text[: len(text) // 2])
    try:
        analyse(folder)
    except StepscopeError as error:
        assert "\n" not in str(error)
