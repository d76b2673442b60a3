import doctest

import pytest

from stepscope.cost import kernel_names, model_flops, operators


@pytest.mark.parametrize("module", [kernel_names, model_flops, operators])
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
