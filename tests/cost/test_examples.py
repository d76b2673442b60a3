import doctest

import pytest

from stepscope.cost.collectives import alpha_beta
from stepscope.cost.collectives import closed_form as collective_time
from stepscope.cost.models import flops as model_flops
from stepscope.cost.models import memory
from stepscope.cost.models import parameters as model_parameters
from stepscope.cost.operators import kernel_names, operators

MODULES = [alpha_beta, collective_time, kernel_names, memory, model_flops, model_parameters, operators]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
