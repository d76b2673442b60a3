"""Compilation in every step is a finding of its own, not launch gaps; a compiled model that only runs has none."""

import pytest
from tests.analyze.build import AUTOGRAD, RankTrace, built_run

from stepscope.analyze.account import account_of
from stepscope.diagnose.findings import diagnose

STEP_US, COMPILED_US = 10_000, (6_000, 1_500)  # in forward, and in backward on its thread


@pytest.mark.parametrize(
    "names", [("compile_fx_inner (dynamo_timed)", "inductor_compile"), ("Torch-Compiled Region: 0/0",)]
)
def test_what_compiles_in_every_step_is_said(tmp_path, names):
    rank = RankTrace()
    for n in range(6):
        at = n * STEP_US
        for thread, begin, took in ((100, at + 100, COMPILED_US[0]), (AUTOGRAD, at + 7_000, COMPILED_US[1])):
            for name in names:
                rank.ran(name, begin, begin + took, thread=thread)
        with rank.op("aten::mm", at + 6_200, at + 6_300):
            rank.kernel("gemm", at=at + 6_210, start=at + 6_220, end=at + 6_900)
        with rank.op("autograd::engine::evaluate_function: MmBackward0", at + 8_600, at + 8_700, thread=AUTOGRAD):
            rank.kernel("gemm", at=at + 8_610, start=at + 8_620, end=at + 9_900, thread=AUTOGRAD)
        rank.step(n, at, at + STEP_US)
    found = {f.id: f for f in diagnose(account_of(built_run(tmp_path, [rank]))).findings}
    assert ("recompilation" in found) == (len(names) == 2)
    if "recompilation" in found:
        assert found["recompilation"].alone_ns == pytest.approx(1e3 * sum(COMPILED_US), rel=0.05)
