"""Files that a user names for costs: damaged, endless or hostile ones end in our own error; docstrings hold."""

import doctest
import json

import pytest

from stepscope.contract import operations
from stepscope.cost import alpha_beta, operators
from stepscope.cost.calibration import Calibration, load_calibration
from stepscope.errors import StepscopeError
from stepscope.lab.bench.config import read_config
from stepscope.lab.predict import model_memory as memory, model_shape
from stepscope.lab.predict.calibrate import calibration_json
from stepscope.lab.predict.model_shape import transformer_from_config

CURVE = {
    "op": "all_reduce", "world_size": 2, "r2": 1, "mean_error": 0, "max_error": 0,
    "knots": [[0, 1], [10, 2]], "left_out": [], "points": [[1, 1.0]],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"knots": []}, {"knots": [[0, 1]]}, {"knots": [[0, 1], [0, 2]]}, {"knots": [[5, 1], [0, 2]]},
        {"knots": [[[0], 1], [1, 2]]}, {"knots": 5}, {"world_size": 10**30}, {"world_size": 0},
        {"points": [[10**400, 1]]},
        {"knots": [[0, 1], [1, float("inf")]]}, {"left_out": [[1]]}, {"r2": None},
    ],
    ids=str,
)  # fmt: skip
def test_curve_that_is_none_is_our_error(tmp_path, change):
    path = tmp_path / "calibration.json"
    document = calibration_json(Calibration((), {}))
    path.write_text(json.dumps({**document, "curves": [CURVE]}))
    assert len(load_calibration(path).curves) == 1
    path.write_text(json.dumps({**document, "curves": [CURVE | change]}))
    with pytest.raises(StepscopeError, match="calibrate again"):
        load_calibration(path)


def test_model_of_a_million_billion_layers_is_refused(tmp_path):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "num_hidden_layers": 10**15}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(StepscopeError, match="layers has to be at most"):
        transformer_from_config(tmp_path / "config.json")


def test_few_aliases_are_read(tmp_path):
    pytest.importorskip("yaml")
    (tmp_path / "config.yaml").write_text("train: &t {steps: 3}\nworkload: *t\n")
    assert read_config(tmp_path / "config.yaml")[0]["workload"] == {"steps": 3}


@pytest.mark.parametrize("text", ["a: " + "[" * 1000, "a: " + "9" * 6000, "a: 2024-99-99", "a: !!python/object:x {}"])
def test_yaml_that_is_none_is_our_error_or_a_text(tmp_path, text):
    pytest.importorskip("yaml")
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(StepscopeError):
        read_config(tmp_path / "config.yaml")


MODULES = [alpha_beta, memory, model_shape, operations, operators]


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
