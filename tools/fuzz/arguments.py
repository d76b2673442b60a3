"""Every option of every command with odd words, and every output as a device, a FIFO, a folder, a link or no place."""

import argparse
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from random import Random

from tools.fuzz.case import Case, Recipe, node, seed, text
from tools.fuzz.seeds import run_files
from tools.fuzz.values import ESC, WORDS

from stepscope.cli.arguments.lazy_parser import LazyParser
from stepscope.cli.main import COMMANDS

_RUN = "run"
_MODEL = ("--layers", "2", "--d-model", "64", "--heads", "4", "--vocab", "256", "--seq-len", "64")
_NEEDED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("report",): (_RUN,),
    ("health",): (_RUN,),
    ("compare",): (_RUN, _RUN),
    ("history",): (_RUN, "--no-cache"),
    ("investigate",): (_RUN,),
    ("whatif",): (_RUN, "--set", "network=2x"),
    ("code",): (_RUN,),
    ("memory",): (_RUN,),
    ("watch",): (_RUN, "--once"),
    ("trigger",): (_RUN, "--no-wait"),
    ("hang",): (_RUN,),
    ("completion",): ("bash",),
    ("export",): (_RUN, "--csv", "tables"),
    ("sql",): (_RUN, "SELECT count(*) FROM events"),
    ("view",): (_RUN, "--no-browser", "--port", "0"),
    ("calibrate",): ("--from-csv", "times.csv"),
    ("record",): ("--", "true"),
    ("predict", "collective"): ("--op", "all_reduce", "--bytes", "1MB", "--world-size", "8", "--link", "50:5"),
    ("predict", "flops"): _MODEL,
    ("predict", "memory"): _MODEL,
    ("predict", "scale"): (_RUN, "--world-size", "8"),
    ("predict", "strategy"): (*_MODEL, "--world-size", "8", "--sequences", "64", "--device", "H200"),
}
"""what a command asks for, besides the option that is tried"""
OUTPUT_FILES = frozenset(("--json", "--html", "--perfetto", "--plot", "--out"))
OUTPUT_FOLDERS = frozenset(("--csv", "--parquet", "--tensorboard", "--cache-folder", "--profile-output-dir"))
OUTPUT_OPTIONS = OUTPUT_FILES | OUTPUT_FOLDERS
_OUTSIDE = frozenset(("/", "..", "file:///etc/passwd"))
"""words that an output must not be given here: what it wrote would not be in the case's folder"""
_OUTPUTS: tuple[tuple[str, dict[str, Recipe]], ...] = (
    ("out", {"out": node("fifo")}),
    ("out", {"out": node("device", 3)}),
    ("out", {"out": node("device", 7)}),
    ("out", {"out": node("folder")}),
    ("out", {"out": text("before")}),
    ("out", {"out": node("link", "kept"), "kept": text("keep")}),
    ("out", {"out": node("link", "nothing")}),
    ("out", {"out": node("link", "out")}),
    ("out/x", {"out": node("link", "kept"), "kept/file": text("keep")}),
    ("out/x", {"out": node("folder"), "out/x": node("fifo")}),
    ("out/x", {"out": text("a file")}),
    ("missing/x", {}),
    ("A" * 250, {}),
    ("A" * 300, {}),
    ("A/" * 3000, {}),
    (f"{ESC}.json", {}),
    ("run", {}),
    ("run/run.json", {}),
    ("-", {}),
    ("", {}),
    ("/proc/self/x", {}),
    ("/dev/fd/77", {}),
)


def odd_arguments(rng: Random) -> Iterator[Case]:
    """Yield command lines with an odd word for an option, or in place of a word that is needed."""
    while True:
        command, options = rng.choice(commands())
        words = list(_NEEDED.get(command, ()))
        if words and (not options or rng.random() < 0.25):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
        else:
            words = _with_options(rng, words, [*rng.choices(options, k=rng.choice((1, 1, 1, 2)))])
        yield _case(command, words, what=" ".join(words)[:120])


def odd_outputs(rng: Random) -> Iterator[Case]:
    """Yield commands whose output is no place for one."""
    while True:
        command, options = rng.choice([(c, o) for c, o in commands() if set(o) & OUTPUT_OPTIONS])
        option = rng.choice(sorted(set(options) & OUTPUT_OPTIONS))
        target, files = rng.choice(_OUTPUTS)
        forced = rng.random() < 0.5 and "--force" in options and not target.startswith("/")
        needed = list(_NEEDED.get(command, ()))
        if command == ("export",):
            needed = needed[:1]
        words = [option, target, *(["--force"] if forced else []), *needed]
        stdout = rng.choice(("full", "closed", "ascii")) if rng.random() < 0.05 and command[0] in _READERS else "file"
        case = _case(command, words, what=f"{' '.join(command)} {option} {target[:30]} {sorted(files)} {stdout}")
        # Forced, a regular file or a link may be replaced, by a run's own file too; what a link points to may not.
        there = files.get(target, {}).get("node")
        may = (target,) if target and (there == "link" or (forced and there is None)) else ()
        yield Case(case.argv, case.files | files, "outputs", case.what, outputs=(*case.outputs, *may), stdout=stdout)


_READERS = ("report", "health", "compare", "whatif", "code", "sql")


def _with_options(rng: Random, needed: list[str], options: list[str]) -> list[str]:
    words: list[str] = []
    for option in options:
        allowed = [w for w in WORDS if w not in _OUTSIDE] if option in OUTPUT_OPTIONS else WORDS
        word = rng.choice(allowed)
        words += rng.choice(([option, word], [option, word], [f"{option}={word}"], [option]))
    # What follows `--` is a command: options come first.
    return [*words, *needed] if rng.random() < 0.7 or "--" in needed else [*needed, *words]


def _case(command: tuple[str, ...], words: list[str], *, what: str) -> Case:
    files = run_files() | {"times.csv": seed("nccl_collectives/collectives_w4_half.csv")}
    return Case((*command, *words), files, kind="arguments", what=what, outputs=("tables", "calibration.json"))


@cache
def commands() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return every command, with the options it takes."""
    found = []
    for name in COMMANDS:
        parser = argparse.ArgumentParser()
        import_module(f"stepscope.cli.arguments.{name}").add_arguments(parser)
        found += _below(parser, (name,))
    return found


def _below(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    if isinstance(parser, LazyParser):
        parser.fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [one for name, sub in action.choices.items() for one in _below(sub, (*path, name))]
    return [(path, tuple(o for action in parser._actions for o in action.option_strings if o not in ("-h", "--help")))]
