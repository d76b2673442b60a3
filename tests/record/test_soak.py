"""Light mode keeps its memory and calls per step. `benchmarks/overhead.py soak` tests the same for longer."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from overhead import soak


@pytest.mark.slow
def test_memory_and_calls_per_step_stay_flat(tmp_path: Path) -> None:
    looks = list(soak(tmp_path, steps=1_200, looks=3))
    assert len(looks) == 3
    # 800 steps later: not 60 bytes a step have stayed.
    assert looks[-1].own_kb - looks[0].own_kb < 800 * 60 / 1024
    assert looks[-1].calls <= looks[0].calls
