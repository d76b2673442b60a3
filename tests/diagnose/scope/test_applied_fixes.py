"""What a run does already is not advised again."""

from pathlib import Path

import pytest
from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import Account, account_of
from stepscope.diagnose.findings import diagnose
from stepscope.diagnose.recording import applied
from stepscope.run.load import load

DATA = Path(__file__).parents[2] / "data"
STEP = 2000


def launched(folder: Path, call: str, *, region: str | None = None) -> Account:
    """Return a job of short kernels whose host needs most of the step to launch them, by one kind of call."""
    r = RankTrace()
    for n in range(5):
        t = n * STEP
        r.step(n, t, t + STEP)
        for k in range(100):
            at = t + 5 + k * 19
            if region:
                r.annotation(region, at, at + 19)
            with r.op("aten::add", at + 1, at + 17):
                r.kernel("vectorized_elementwise_kernel", at=at + 11, start=at + 15, end=at + 16, call=call)
    folder.mkdir(exist_ok=True)
    return account_of(built_run(folder, [r]))


@pytest.mark.parametrize(("call", "advised"), [("cudaLaunchKernel", True), ("cudaGraphLaunch", False)])
def test_graphs_are_advised_only_where_there_are_none(tmp_path: Path, call: str, advised: bool) -> None:
    account = launched(tmp_path, call)
    assert ("launch-overhead" in {f.id for f in diagnose(account).findings}) is advised
    assert ("launch-overhead" in applied(account)) is not advised


def test_a_recorded_job_with_graphs_is_not_told_of_graphs() -> None:
    account = account_of(load([str(DATA / "h200-cuda-graphs")], jobs=1, cache=False))
    assert "launch-overhead" in applied(account)
    assert "launch-overhead" not in {f.id for f in diagnose(account).findings}


def test_a_compiled_model_is_not_told_to_compile(tmp_path: Path) -> None:
    assert "memory-bound-kernels" in applied(
        launched(tmp_path, "cudaLaunchKernel", region="Torch-Compiled Region: 0/0")
    )
    assert "memory-bound-kernels" not in applied(launched(tmp_path / "b", "cudaLaunchKernel"))
