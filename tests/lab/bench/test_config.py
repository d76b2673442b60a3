"""Settings from files and the command line: what is given holds, what is wrong is named with its place."""

from argparse import Namespace
from dataclasses import fields
from pathlib import Path
from typing import get_type_hints

import pytest

from stepscope.errors import InputError, UsageError
from stepscope.lab.bench.config import SECTIONS, ConfiguredParser, config_from, expectation, learning_rate

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "configs"

TOML = """
[workload]
d_model = 64

[train]
lr = 0.01
"""


def written(folder: Path, text: str, name: str = "job.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refusal(folder: Path, text: str = "", *overrides: str, name: str = "job.toml") -> str:
    with pytest.raises((UsageError, InputError)) as caught:
        config_from(written(folder, text, name), overrides)
    return str(caught.value)


def test_command_line_changes_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    config = config_from(written(tmp_path, TOML), ["train.lr=0.1", "workload.options.kv_heads=2"])
    assert (config.workload.d_model, config.train.lr, config.train.steps) == (64, 0.1, 100)
    assert config.workload.options == {"kv_heads": 2}


@pytest.mark.parametrize("example", sorted(p.name for p in EXAMPLES.glob("*.toml")))
def test_examples_in_toml_are_complete(example: str) -> None:
    assert config_from(EXAMPLES / example).workload.name in ("gpt", "deepseek")


def test_example_in_yaml_says_the_same_as_toml(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    assert config_from(EXAMPLES / "fsdp_bf16.yaml").train.lr == 3e-4  # text to YAML, a number to us
    yaml = "workload:\n  d_model: 64\ntrain: {lr: 0.01}\n"
    assert config_from(written(tmp_path, yaml, "job.yaml")) == config_from(written(tmp_path, TOML))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[train]\nstrateggy = 'ddp'", "line 2: train.strateggy: no such setting, did you mean strategy?"),
        ("[train]\nweight_decay = 0.1", "train.weight_decay: no such setting, did you mean optimizer.weight_decay?"),
        ("[shceduler]\ndecay = 'linear'", "line 1: shceduler: no such setting, did you mean scheduler?"),
        ("[train]\nprecision = 'fp61'", "train.precision has to be one of fp32, tf32, fp16, bf16, not 'fp61'"),
        ("[train]\nlr = nan", "train.lr has to be a number above 0, not nan"),
        ("[profile]\nranks = [-1]", "profile.ranks has to be a list of numbers of at least 0, or none"),
        ("[scheduler]\ndecay = 'linear'\nwarmup_steps = 100", "warmup_steps has to be below the 100 total steps"),
        ("[train]\nprecision = 'fp16'\nstrategy = 'fsdp2_zero3'", "whose shards share no loss scale, not 'fp16'"),
        ("[train\nlr = 1", "is not TOML: "),
    ],
)
def test_what_is_refused_is_explained(tmp_path: Path, text: str, said: str) -> None:
    assert said in refusal(tmp_path, text)


def test_manual_lists_every_setting() -> None:
    manual = (ROOT / "docs" / "lab" / "configs.md").read_text()
    for name, kind in SECTIONS.items():
        for known in fields(kind):
            value = getattr(kind(), known.name)
            shown = "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            expected = expectation(get_type_hints(kind)[known.name], known.metadata)
            assert f"| `{name}.{known.name}` | {shown} | {expected} | {known.metadata['doc']} |" in manual


def parsed(*arguments: str) -> Namespace:
    parser = ConfiguredParser()
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    return parser.parse_args(arguments)


def test_parser_takes_its_defaults_from_the_file_and_flags_win_wherever_they_stand(tmp_path: Path) -> None:
    file = str(written(tmp_path, TOML))
    assert (parsed("--config", file).d_model, parsed("--config", file).runs) == (64, 3)
    assert parsed("--d-model", "256", "--config", file).d_model == 256
    assert parsed("--config", file, "--d-model", "256").d_model == 256
    assert parsed("--set", "bench.runs=9", "--set", "workload.options.kv_heads=2").workload_options == {"kv_heads": 2}
    assert not hasattr(parsed(), "workload_options")


GUIDE_YAML = """
fsdp:
  sharding_strategy: {sharding}
  use_mixed_precision: true
  use_orig_params: true
training:
  learning_rate: 3e-4
  scheduler:
    type: linear_warmup
    warmup_steps: 20
    total_steps: 400
"""


@pytest.mark.parametrize(
    ("sharding", "strategy"), [("FULL_SHARD", "fsdp2_zero3"), ("SHARD_GRAD_OP", "fsdp2_zero2"), ("fsdp", "fsdp2_zero3")]
)
def test_yaml_of_the_guides_is_accepted_as_written(tmp_path: Path, sharding: str, strategy: str) -> None:
    pytest.importorskip("yaml")
    found = config_from(written(tmp_path, GUIDE_YAML.format(sharding=sharding), "guide.yaml"))
    assert (found.train.strategy, found.train.precision) == (strategy, "bf16")
    assert (found.scheduler.warmup_steps, found.scheduler.decay, found.total_steps) == (20, "linear", 400)


def test_a_section_of_one_strategy_chooses_it(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    only_mixed = config_from(written(tmp_path, "fsdp: {use_mixed_precision: true}\n", "fsdp.yaml")).train
    assert (only_mixed.strategy, only_mixed.precision) == ("fsdp2_zero3", "bf16")
    text = "ddp: {find_unused_parameters: true, bucket_cap_mb: 5}\n"
    ddp = config_from(written(tmp_path, text, "ddp.yaml")).train
    assert (ddp.strategy, ddp.find_unused_parameters, ddp.bucket_size_mb) == ("pytorch_ddp", True, 5)
    both = "ddp: {static_graph: true}\nfsdp: {sharding_strategy: SHARD_GRAD_OP}\ntrain: {strategy: %s}\n"
    assert config_from(written(tmp_path, both % "fsdp", "both.yaml")).train.strategy == "fsdp2_zero2"
    assert config_from(written(tmp_path, both % "zero1", "both.yaml")).train.strategy == "zero1"
    said = refusal(tmp_path, "fsdp:\n  shading_strategy: FULL_SHARD\n", name="job.yaml")
    assert "line 2" in said and "did you mean sharding_strategy" in said
    nested = refusal(tmp_path, "training:\n  scheduler:\n    warmup_steps: -1\n", name="job.yaml")
    assert "line 3: scheduler.warmup_steps" in nested
    changed = config_from(None, ["training.scheduler.type=cosine", "fsdp.sharding_strategy=SHARD_GRAD_OP"])
    assert (changed.scheduler.decay, changed.train.strategy) == ("cosine", "fsdp2_zero2")


def test_a_setting_under_two_names_is_refused_at_its_line(tmp_path: Path) -> None:
    said = refusal(tmp_path, "[training]\nlr = 0.1\nlearning_rate = 0.2\n")
    assert said == f"{tmp_path}/job.toml, line 3: train.lr is given a second time; remove one"
    assert "train.lr" in refusal(tmp_path, "[training]\nlearning_rate = -1\n")


@pytest.mark.parametrize("decay", ["constant", "linear", "cosine"])
def test_learning_rate_rises_linearly_then_decays_to_its_share(decay: str) -> None:
    rates = [
        learning_rate(step, peak=2.0, warmup_steps=2, decay=decay, total_steps=10, final_ratio=0.25)
        for step in range(13)
    ]
    assert rates[:3] == [0.0, 1.0, 2.0]
    half, end = (2.0, 2.0) if decay == "constant" else (2.0 * (0.25 + 0.75 / 2), 0.5)
    assert rates[6] == pytest.approx(half) and rates[10:] == pytest.approx([end] * 3)
