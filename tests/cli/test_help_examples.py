"""Every example in every help is a command line that its parser takes, and what needs no job of its own is run."""

import argparse
import gzip
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.analyze.owners.owned_folder import owned_folder
from tests.report.pages import comparison

from stepscope.cli.arguments import LazyParser
from stepscope.cli.main import COMMANDS, command_parser, main
from stepscope.contract.operations import OPERATIONS

_COMMENT = re.compile(r" {3,}.*")
_SHELL = {"|", ">"}


def descriptions(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the help text of a command and of its kinds."""
    if isinstance(parser, LazyParser):
        parser.fill()
    yield parser.description or ""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for kind in action.choices.values():
                yield from descriptions(kind)


def examples(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.startswith("  stepscope ")]
    return [_words(re.sub(r" {3,}--", " --", line)) for line in lines]


def _words(line: str) -> list[str]:
    words = shlex.split(_COMMENT.sub("", line))
    end = next((i for i, word in enumerate(words) if word in _SHELL), len(words))
    return words[1:end]


ALL = [
    (name, words)
    for name in COMMANDS
    for text in dict.fromkeys(descriptions(command_parser(name)))
    for words in examples(text)
]


def test_examples_are_found() -> None:
    assert len(ALL) > 60
    assert {name for name, _ in ALL} == set(COMMANDS) - {"doctor"}


@pytest.mark.parametrize(("name", "words"), ALL, ids=[" ".join(words)[:70] for _, words in ALL])
def test_example_is_taken(name: str, words: list[str]) -> None:
    assert words[0] == name
    try:
        command_parser(words[0]).parse_args(words[1:])
    except SystemExit as ended:  # `sql --tables` is done once it is read
        assert ended.code == 0


DATA = Path(__file__).parents[1] / "data"
JOBS = {"demo", "record", "bench", "tune", "gate"}
RUNNING = {"watch", "trigger"}
"""which look at a job that runs"""
SERVES = {"mcp", "view"}
OWNERS = {"code", "--without", "--pprof", "--speedscope"}
# Names that stand for the reader's own, and what the planted run has instead.
OWN = {"train.py:42": "train.py:10", "module:layers.*.bn": "module:blocks.*", "data.py:7=0.5": "train.py:12=0.5"}
OWN |= {"0-7": "0-1", "12:14": "8:10"}
NOT_HERE = {"profile.sqlite", "rank3.ncu-rep", "logs/*.csv"}
"""files of tools whose import has tests of its own, with real ones"""


def is_run_here(words: list[str]) -> bool:
    """Return whether an example needs neither a job, nor a reader, nor another tool's file."""
    starts = words[0] in JOBS | RUNNING | SERVES or "--" in words or {"--backend", "--tables"} & set(words)
    elsewhere = any("://" in word for word in words)
    return not starts and not elsewhere and not NOT_HERE & set(words)


RUN_HERE = [words for _, words in ALL if is_run_here(words)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that examples name."""
    folder = tmp_path_factory.mktemp("examples")
    linear, files = DATA / "gloo-linear", DATA / "side_files"
    for name in ("run-folder", "second-run", "before", "after", *(f"run{i}" for i in range(1, 7))):
        shutil.copytree(linear, folder / name)
    for day, name in enumerate((*(f"runs/{i}" for i in range(5)), "run")):
        shutil.copytree(linear, folder / name)
        _start_on_day(folder / name / "run.json", day)
    owned_folder(folder / "owned", ranks=4)
    (folder / "traces").mkdir()
    for rank in range(2):
        shutil.copy(linear / f"rank0000{rank}.pt.trace.json.gz", folder / "traces" / f"rank{rank}.json.gz")
    (folder / "trace.json").write_bytes(gzip.decompress((linear / "rank00000.pt.trace.json.gz").read_bytes()))
    snapshot = gzip.decompress((DATA / "memory_snapshot" / "snapshot.pickle.gz").read_bytes())
    (folder / "snapshot.pickle").write_bytes(snapshot)
    (folder / "dumps").mkdir()
    for dump in (DATA / "flight_recorder").glob("*.gz"):
        (folder / "dumps" / dump.stem).write_bytes(gzip.decompress(dump.read_bytes()))
    for n in (1, 2):
        (folder / f"bench-results-{n}").mkdir()
        (folder / f"bench-results-{n}" / "results.json").write_text(json.dumps(comparison()))
    sizes = [(ranks, 1 << k) for ranks in (2, 4) for k in range(10, 24)]
    times = [f"{op},{ranks},{size},{20 * ranks + size / 1e4}" for op in OPERATIONS for ranks, size in sizes]
    (folder / "times.csv").write_text("\n".join(["op,world_size,bytes,median_us", *times]))
    given = {"all_reduce_perf.txt": "all_reduce.txt", "nccl_tests.json": "all_gather.json"}
    for name, called in {**given, "config.json": "config.json"}.items():
        shutil.copy(files / name, folder / called)
    assert main(["calibrate", "--from-csv", str(folder / "times.csv"), "--out", str(folder / "calibration.json")]) == 0
    return folder


def _start_on_day(run_json: Path, day: int) -> None:
    told = json.loads(run_json.read_text())
    run_json.write_text(json.dumps({**told, "created": f"2026-01-{1 + day:02}T12:00:00+00:00"}))


@pytest.mark.slow
@pytest.mark.parametrize("words", RUN_HERE, ids=[" ".join(words)[:70] for words in RUN_HERE])
def test_example_is_run(words, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    owned = OWNERS & set(words)
    given = ["owned" if owned and word == "run-folder/" else OWN.get(word, word) for word in words]
    if words[1].startswith("/tmp/nccl_trace"):  # the shell names the files
        given = [words[0], *map(str, sorted((place / "dumps").iterdir()))]
    gates = "--fail-on" in words
    if words[0] == "calibrate":  # by default several write the same file
        given += ["--force"] if "--out" in words else ["--out", f"{len(given[1])}.json"]
    code = main(given)
    said = capsys.readouterr()
    assert code in ((0, 1) if gates else (0,)), said.err
    assert said.out or "-" not in words
