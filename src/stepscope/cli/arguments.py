"""Arguments that several commands share, and the types of their values."""

import argparse
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.units import printable

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power}
_Parser = argparse.ArgumentParser | argparse._ArgumentGroup
# an exabyte is 2**60; beyond 2**63 no array holds the number
MAX_BYTES = 2**62


class HelpFormatter(argparse.HelpFormatter):
    """Wraps the paragraphs of a command's description; indented lines, such as examples, keep their breaks."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = []
        for block in text.strip().split("\n\n"):
            lines = block.split("\n")
            if not any(line.startswith(" ") for line in lines):
                lines = [" ".join(lines)]
            blocks.append("\n".join(part for line in lines for part in _fitting(line, width)))
        return "\n\n".join(blocks)


def _fitting(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    is_command = line.startswith("  stepscope ")
    entry = re.match(r"( +\S.*?) {2,}(\S.*)", line)
    if entry and is_command:
        return [*_fitting(entry[1], width), f"      {entry[2]}"]
    hanging = " " * (entry.start(2) if entry else 6 if line.startswith(" ") else 0)
    lines = textwrap.wrap(
        line, width - 2 * is_command, subsequent_indent=hanging, break_long_words=False, break_on_hyphens=False
    )
    return [f"{one} \\" for one in lines[:-1]] + lines[-1:] if is_command else lines


def add_run_arguments(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add the run, and the options for what its files do not contain."""
    parser.add_argument(
        "run", metavar="RUN", nargs="+" if needed else "*", help="run folder, trace, folder of traces, or glob"
    )
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for what the files of a run do not contain, and how they are read; below a command's own."""
    group = parser.add_argument_group("reading the run")
    options = {
        "--unprofiled-step-ms": ("X", "step time without the profiler, to subtract its overhead"),
        "--flops-per-step": ("F", "model FLOPs of the whole job per step"),
        "--tokens-per-step": ("N", "tokens of the whole job per step"),
        "--samples-per-step": ("N", "samples of the whole job per step"),
        "--peak-tflops": ("P", "peak of one device in TFLOP/s"),
    }
    add_options(group, options, type=above_zero)
    group.add_argument("--hardware", type=Path, metavar="FILE", help="TOML file with additional chips")
    group.add_argument(
        "--capture",
        type=Path,
        action="append",
        default=[],
        metavar="TRACE",
        help="trace of the capture of CUDA graphs, for the lines of their kernels",
    )
    group.add_argument("--jobs", type=at_least_one, metavar="N", help="files read in parallel (default: all cores)")
    group.add_argument(
        "--engine",
        default="local",
        metavar="dask://HOST:PORT",
        help="read ranks on a Dask cluster (default: this machine)",
    )
    group.add_argument(
        "--full-ranks",
        type=at_least_one,
        metavar="N",
        help="analyse at most N ranks in full (default: 128, fewer for very large traces)",
    )
    add_cache_options(group)


def add_cache_options(parser: _Parser) -> None:
    """Add the options that turn the cache off or move it."""
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    parser.add_argument(
        "--cache-folder", type=Path, metavar="DIR", help="cache folder (default: .stepscope/ next to the traces)"
    )


def add_options(parser: _Parser, options: Mapping[str, tuple[str, str | None]], **common: Any) -> None:
    """Add options given as {name: (metavar, help)}, all of the same `type`."""
    for name, (metavar, text) in options.items():
        parser.add_argument(name, metavar=metavar, help=text, **common)


def add_flags(parser: _Parser, flags: Mapping[str, str]) -> None:
    """Add flags given as {name: help}."""
    for name, text in flags.items():
        parser.add_argument(name, action="store_true", help=text)


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    """Add --json for `what`, and --force."""
    parser.add_argument("--json", metavar="PATH", help=f"write {what}; - for standard output")
    add_force(parser)


def add_html(parser: argparse.ArgumentParser) -> None:
    """Add `--html`."""
    parser.add_argument("--html", metavar="PATH", help="write a self-contained HTML file")


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add --force."""
    parser.add_argument("--force", action="store_true", help="overwrite existing files")


def take_command(parser: argparse.ArgumentParser, name: str) -> None:
    """Make a parser put what follows `--` into `command`, unchanged.

    argparse itself drops the `--` and so cannot distinguish a command from a run.
    """
    parser.usage = f"stepscope {name} [options] RUN\n       stepscope {name} [options] -- COMMAND ..."
    parse = parser.parse_args

    def parse_args(args: Sequence[str]) -> argparse.Namespace:
        words = list(args)
        at = words.index("--") if "--" in words else len(words)
        found = parse(words[:at])
        found.command = words[at + 1 :] if at < len(words) else None
        return found

    parser.parse_args = parse_args  # type: ignore[method-assign, assignment]


class LazyParser(argparse.ArgumentParser):
    """A parser that `add` fills on first use: only the requested kind of `bench` or `predict` is imported."""

    def __init__(self, *, add: Callable[[argparse.ArgumentParser], None], **kwargs: Any) -> None:
        super().__init__(formatter_class=HelpFormatter, **kwargs)
        self._add = add

    def fill(self) -> None:
        """Add description and arguments; once, since argparse takes no argument twice."""
        self._add(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return what argparse returns, with all arguments in place."""
        self.fill()
        return super().parse_known_args(args, namespace)


def whole_number(text: str) -> int | None:
    """Return the number that at most 15 plain digits spell, None for anything else.

    >>> whole_number("15"), whole_number("-1"), whole_number("\u00b2"), whole_number("9" * 5000)
    (15, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def size_bytes(text: str) -> int:
    """Return bytes: `1048576`, `1.5MB` (powers of 1000) or `1MiB` (powers of 1024).

    >>> size_bytes("25MB"), size_bytes("4KiB"), size_bytes("1e6")
    (25000000, 4096, 1000000)
    """
    found = re.fullmatch(r"([\d.]+(?:e\d+)?)\s*([a-z]*)", text.strip(), re.IGNORECASE)
    unit = _UNITS.get(found[2].lower()) if found else None
    try:
        size = int(float(found[1]) * unit) if found and unit else 0
    except (ValueError, OverflowError):  # two dots, or beyond every float
        size = 0
    if not 1 <= size <= MAX_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size above 0; write it as 1048576, 25MB or 4KiB")
    return size


def at_least_one(text: str) -> int:
    """Return a whole number of 1 or more."""
    return _at_least(1, text)


def at_least_zero(text: str) -> int:
    """Return a whole number of 0 or more."""
    return _at_least(0, text)


def _at_least(least: int, text: str) -> int:
    number = whole_number(text)
    if number is None or number < least:
        raise argparse.ArgumentTypeError(f"{printable(text)!r} is not a whole number of at least {least}")
    return number


def above_zero(text: str) -> float:
    """Return a number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def world_sizes(text: str) -> list[int]:
    """Return the world sizes in `2,4`."""
    return [at_least_one(part) for part in text.split(",")]


class ExtendWorldSizes(argparse.Action):
    """Takes `--world-size 2,4` and, as older versions did, `2 4` or the option twice."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        lists = [values] if self.nargs is None else list(values or ())
        setattr(namespace, self.dest, [*(getattr(namespace, self.dest) or []), *(n for sizes in lists for n in sizes)])  # type: ignore[union-attr]
