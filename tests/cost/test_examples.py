import doctest

import pytest

from stepscope.cost import alpha_beta, kernel_names, model_flops, operators
from stepscope.cost import closed_form as collective_time
from stepscope.cost import model_memory as memory
from stepscope.cost import model_shape as model_parameters

MODULES = [alpha_beta, collective_time, kernel_names, memory, model_flops, model_parameters, operators]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
