"""What can follow each command: read from the parsers, so that it is never behind them."""

import argparse
from collections.abc import Iterator

from stepscope.cli.arguments.lazy_parser import LazyParser
from stepscope.cli.main import COMMANDS, command_parser
from stepscope.dataclass import dataclass

_MAX_HELP = 60


@dataclass(frozen=True)
class Option:
    """One option of a command."""

    names: tuple[str, ...]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Offer:
    """What can follow a command, or a command and its kind."""

    #: the command, and its kind where it has kinds
    words: tuple[str, ...]
    help: str
    kinds: tuple[str, ...]
    options: tuple[Option, ...]


def offers() -> list[Offer]:
    """Return what follows every command and every kind of `bench` and `predict`."""
    return [offer for name, what in COMMANDS.items() for offer in _offers(command_parser(name), (name,), what)]


def _offers(parser: argparse.ArgumentParser, words: tuple[str, ...], what: str) -> Iterator[Offer]:
    if isinstance(parser, LazyParser):
        parser.fill()
    kinds = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    below = [(kind, one) for action in kinds for kind, one in action.choices.items()]
    shown = [a for a in parser._actions if a.help is not argparse.SUPPRESS]
    fixed = [str(c) for a in shown if not a.option_strings and a.choices and a not in kinds for c in a.choices]
    options = tuple(_option(a) for a in shown if a.option_strings)
    yield Offer(words, what, (*(kind for kind, _ in below), *fixed), options)
    for kind, one in below:
        yield from _offers(one, (*words, kind), "")


def _option(action: argparse.Action) -> Option:
    text = (action.help or "").replace("%%", "%")
    choices = tuple(map(str, action.choices or ()))
    return Option(tuple(action.option_strings), action.nargs != 0, choices, text[:_MAX_HELP])
