"""Every example in every help is a command line that its parser takes; predictions that need no file are made."""

import re
import shlex
from importlib import import_module

import pytest

from stepscope.cli.arguments.bench import WHAT as BENCHES
from stepscope.cli.arguments.predict import WHAT as PREDICTIONS
from stepscope.cli.main import COMMANDS, command_parser, main

MODULES = (
    *COMMANDS,
    *dict.fromkeys(f"bench.{file}" for file, _ in BENCHES.values()),
    *(f"predict.{name}" for name in PREDICTIONS),
)
_COMMENT = re.compile(r" {3,}.*")
_SHELL = {"|", ">"}


def examples(module: str) -> list[list[str]]:
    text = import_module(f"stepscope.cli.arguments.{module}").__doc__ or ""
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.startswith("  stepscope ")]
    return [_words(re.sub(r" {3,}--", " --", line)) for line in lines]


def _words(line: str) -> list[str]:
    words = shlex.split(_COMMENT.sub("", line))
    end = next((i for i, word in enumerate(words) if word in _SHELL), len(words))
    return words[1:end]


ALL = [(module, words) for module in MODULES for words in examples(module)]


def test_examples_are_found() -> None:
    assert len(ALL) > 60
    assert {module for module, _ in ALL} >= set(MODULES) - {"doctor"}


@pytest.mark.parametrize(("module", "words"), ALL, ids=[" ".join(words)[:70] for _, words in ALL])
def test_example_is_taken(module: str, words: list[str]) -> None:
    assert words[0] == module.split(".")[0]
    try:
        command_parser(words[0]).parse_args(words[1:])
    except SystemExit as ended:  # `sql --tables` is done once it is read
        assert ended.code == 0


WITHOUT_FILES = [
    words
    for _, words in ALL
    if words[0] == "predict" and words[1] != "scale" and not {"--config", "--calibration"} & set(words)
]


@pytest.mark.slow
@pytest.mark.parametrize("words", WITHOUT_FILES, ids=[" ".join(words[1:])[:70] for words in WITHOUT_FILES])
def test_prediction_of_an_example_is_made(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert len(WITHOUT_FILES) > 5
    assert main(words) == 0
    assert capsys.readouterr().out
