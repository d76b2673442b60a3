"""Completion of commands and options in your shell, written from the parsers themselves.

examples:
  stepscope completion bash > ~/.local/share/bash-completion/completions/stepscope
  stepscope completion zsh > ~/.zfunc/_stepscope
  stepscope completion fish > ~/.config/fish/completions/stepscope.fish

For this shell only: eval "$(stepscope completion bash)". Write it again after an update.
"""

import argparse
import shlex
from collections.abc import Iterator, Sequence

from stepscope.cli.arguments import LazyParser
from stepscope.cli.main import COMMANDS, command_parser
from stepscope.cli.messages import print_line
from stepscope.dataclass import dataclass


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    shells = ("bash", "zsh", "fish")
    parser.add_argument("shell", metavar="SHELL", choices=shells, help=", ".join(shells))


def run(args: argparse.Namespace) -> int:
    """Return 0 after printing the script."""
    for line in {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](completions()):
        print_line(line)
    return 0


@dataclass(frozen=True)
class Option:
    """One option of a command."""

    names: Sequence[str]
    takes_value: bool
    choices: tuple[str, ...]
    help: str


@dataclass(frozen=True)
class Completion:
    """What can follow a command, or a command and its kind."""

    words: tuple[str, ...]
    kinds: tuple[str, ...]
    options: tuple[Option, ...]


def completions() -> list[Completion]:
    """Return what can follow every command and every kind of `bench` and `predict`, read from their parsers."""
    return [found for name in COMMANDS for found in _completions(command_parser(name), (name,))]


def _completions(parser: argparse.ArgumentParser, words: tuple[str, ...]) -> Iterator[Completion]:
    if isinstance(parser, LazyParser):
        parser.fill()
    kinds = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    below = [(kind, one) for action in kinds for kind, one in action.choices.items()]
    shown = [a for a in parser._actions if a.help is not argparse.SUPPRESS]
    fixed = [str(c) for a in shown if not a.option_strings and a.choices and a not in kinds for c in a.choices]
    options = tuple(
        Option(a.option_strings, a.nargs != 0, tuple(map(str, a.choices or ())), (a.help or "").replace("%%", "%")[:60])
        for a in shown
        if a.option_strings
    )
    yield Completion(words, (*(kind for kind, _ in below), *fixed), options)
    for kind, one in below:
        yield from _completions(one, (*words, kind))


def _bash(found: Sequence[Completion]) -> Iterator[str]:
    yield "_stepscope() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words="" kinds=""'
    yield "  if (( COMP_CWORD == 1 )); then"
    yield f'    COMPREPLY=( $(compgen -W {shlex.quote(" ".join(COMMANDS))} -- "$cur") ); return'
    yield "  fi"
    # The longer path comes first: `bench ddp` before `bench`.
    yield '  case "${COMP_WORDS[1]} ${COMP_WORDS[2]} " in'
    for one in sorted(found, key=lambda one: -len(one.words)):
        yield f"    {shlex.quote(' '.join(one.words) + ' ')}*)"
        yield f"      words={shlex.quote(' '.join(name for option in one.options for name in option.names))}"
        if one.kinds:
            yield f"      (( COMP_CWORD == {1 + len(one.words)} )) && kinds={shlex.quote(' '.join(one.kinds))}"
        with_choices = [option for option in one.options if option.choices]
        if with_choices:
            yield '      case "$prev" in'
            for option in with_choices:
                given = f'COMPREPLY=( $(compgen -W {shlex.quote(" ".join(option.choices))} -- "$cur") ); return'
                yield f"        {'|'.join(option.names)}) {given} ;;"
            yield "      esac"
        yield "      ;;"
    yield "  esac"
    yield '  if [[ "$cur" == -* ]]; then'
    yield '    COMPREPLY=( $(compgen -W "$words" -- "$cur") )'
    yield '  elif [[ -n "$kinds" ]]; then'
    yield '    COMPREPLY=( $(compgen -W "$kinds" -- "$cur") )'
    yield "  else"
    yield '    COMPREPLY=( $(compgen -f -- "$cur") )'
    yield "  fi"
    yield "}"
    yield "complete -o filenames -F _stepscope stepscope"


def _zsh(found: Sequence[Completion]) -> Iterator[str]:
    yield "#compdef stepscope"
    yield "_stepscope() {"
    yield "  local -a offered"
    yield "  if (( CURRENT == 2 )); then"
    yield f"    offered=({' '.join(_described(name, what) for name, what in COMMANDS.items())})"
    yield "    _describe command offered; return"
    yield "  fi"
    yield '  case "${words[2]} ${words[3]} " in'
    for one in sorted(found, key=lambda one: -len(one.words)):
        yield f"    {shlex.quote(' '.join(one.words) + ' ')}*)"
        if one.kinds:
            yield f"      if (( CURRENT == {2 + len(one.words)} )) && [[ $PREFIX != -* ]]; then"
            yield f"        offered=({' '.join(map(shlex.quote, one.kinds))}); _describe kind offered; return"
            yield "      fi"
        for option in (option for option in one.options if option.choices):
            tests = " || ".join(f"${{words[CURRENT-1]}} == {name}" for name in option.names)
            yield f"      if [[ {tests} ]]; then compadd -- {' '.join(map(shlex.quote, option.choices))}; return; fi"
        each = (_described(name, option.help) for option in one.options for name in option.names)
        yield f"      offered=({' '.join(each)})"
        yield "      ;;"
    yield "  esac"
    yield "  if [[ $PREFIX == -* ]]; then _describe option offered; else _files; fi"
    yield "}"
    yield 'if [[ "$funcstack[1]" == "_stepscope" ]]; then _stepscope "$@"; else compdef _stepscope stepscope; fi'


def _described(word: str, what: str) -> str:
    return shlex.quote(f"{word}:{what}" if what else word)


def _fish(found: Sequence[Completion]) -> Iterator[str]:
    for name, what in COMMANDS.items():
        yield f"complete -c stepscope -n __fish_use_subcommand -f -a {name} -d {_fish_quoted(what)}"
    for one in found:
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.words)
        if one.kinds:
            none_yet = f"{seen} ; and not __fish_seen_subcommand_from {' '.join(one.kinds)}"
            yield f"complete -c stepscope -n '{none_yet}' -f -a {_fish_quoted(' '.join(one.kinds))}"
        for option in one.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else " -r" * option.takes_value
            yield f"complete -c stepscope -n '{seen}' {names}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
