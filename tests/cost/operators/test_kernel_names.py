import time
from pathlib import Path

import pytest

from stepscope.cost.kernel_names import Family, KernelClass, kernel_class

_TABLE = (Path(__file__).parents[2] / "data/cost/kernel_names.tsv").read_text(encoding="utf-8").splitlines()[1:]
LABELLED = [line.split("\t") for line in _TABLE]
ANSWERS = {"yes": True, "no": False, "unknown": None}


@pytest.mark.parametrize(("family", "tensor_core", "dtype", "name"), LABELLED)
def test_name_tells_family_tensor_cores_and_type(family, tensor_core, dtype, name):
    expected = KernelClass(Family(family), ANSWERS[tensor_core], None if dtype == "-" else dtype)
    assert kernel_class(name) == expected


@pytest.mark.parametrize("name", ["", "some_kernel_of_my_own", "\u202e\x1b[31m"])
def test_names_that_no_rule_knows_are_other(name):
    assert kernel_class(name) == KernelClass(Family.OTHER, tensor_core=False, dtype=None)


def test_hostile_names_cost_no_more_than_their_length():
    def seconds(name):
        start = time.process_time()
        kernel_class(name)
        return time.process_time() - start

    usual = max(seconds("softmax_warp_x<" + ", 1" * 1_000), 1e-3)
    assert seconds("softmax_warp_x<" + ", 1" * 1_000_000) < 50 * usual
    assert seconds("triton_poi_fused" + "_view" * 100_000 + "x") < 50 * usual
