import doctest

import pytest

from stepscope.cost import (
    alpha_beta,
    collective_time,
    kernel_names,
    memory,
    model_flops,
    model_parameters,
    operators,
)

MODULES = [alpha_beta, collective_time, kernel_names, memory, model_flops, model_parameters, operators]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
