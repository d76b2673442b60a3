"""A trace in the shape of DeepSeek's published one: both passes on one thread, told apart by its own ranges, and
expert-parallel kernels without any record. Constructed, because the original has no licence to copy it under.
"""

from pathlib import Path

from tests.analyze.build import RankTrace, built_run

from stepscope.analyze.account import account_of

DISPATCH = "void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)"
COMBINE = "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*)"


def test_ranges_decide_the_pass_and_kernels_the_strategy(tmp_path: Path) -> None:
    r = RankTrace(0, world_size=64)
    r.step(0, 0, 1000)
    for at, name in ((0, "attn(F)"), (100, "mlp(B)"), (300, "mlp(W)"), (500, "mlp(F)")):
        r.annotation(name, at, at + 90)
        r.kernel("gemm", at=at + 5, start=at + 20, end=at + 80)
    r.kernel(DISPATCH, at=600, start=610, end=700)
    r.kernel(COMBINE, at=710, start=720, end=800)
    found = account_of(built_run(tmp_path, [r]))
    assert found.step is not None
    assert (found.step.ns("forward"), found.step.ns("backward")) == (120_000, 120_000)
    assert found.strategy.name == "ep64"
    assert not any("no communication was launched" in w for w in found.warnings)
