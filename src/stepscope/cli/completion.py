"""Completion of commands and options in your shell, written from the parsers themselves.

examples:
  stepscope completion bash > ~/.local/share/bash-completion/completions/stepscope
  stepscope completion zsh > ~/.zfunc/_stepscope
  stepscope completion fish > ~/.config/fish/completions/stepscope.fish

For this shell only: eval "$(stepscope completion bash)". Write it again after an update.
"""

import argparse
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence

from stepscope.cli.main import COMMANDS, command_parser
from stepscope.cli.run_arguments import LazyParser, print_line
from stepscope.records import dataclass


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


_BASH = """\
_stepscope() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words="" kinds=""
  if (( COMP_CWORD == 1 )); then
    COMPREPLY=( $(compgen -W @COMMANDS@ -- "$cur") ); return
  fi
  case "${COMP_WORDS[1]} ${COMP_WORDS[2]} " in
@CASES@
  esac
  if [[ "$cur" == -* ]]; then
    COMPREPLY=( $(compgen -W "$words" -- "$cur") )
  elif [[ -n "$kinds" ]]; then
    COMPREPLY=( $(compgen -W "$kinds" -- "$cur") )
  else
    COMPREPLY=( $(compgen -f -- "$cur") )
  fi
}
complete -o filenames -F _stepscope stepscope"""

_ZSH = """\
#compdef stepscope
_stepscope() {
  local -a offered
  if (( CURRENT == 2 )); then
    offered=(@COMMANDS@)
    _describe command offered; return
  fi
  case "${words[2]} ${words[3]} " in
@CASES@
  esac
  if [[ $PREFIX == -* ]]; then _describe option offered; else _files; fi
}
if [[ "$funcstack[1]" == "_stepscope" ]]; then _stepscope "$@"; else compdef _stepscope stepscope; fi"""


def _filled(script: str, commands: str, case: Callable[[Completion], str], found: Sequence[Completion]) -> list[str]:
    # The longer path comes first: `bench ddp` before `bench`.
    longest_first = sorted(found, key=lambda one: -len(one.words))
    cases = (f"    {shlex.quote(' '.join(one.words) + ' ')}*)\n{case(one)}\n      ;;" for one in longest_first)
    return script.replace("@COMMANDS@", commands).replace("@CASES@", "\n".join(cases)).splitlines()


def _quoted(words: Iterable[str]) -> str:
    return shlex.quote(" ".join(words))


def _bash(found: Sequence[Completion]) -> list[str]:
    def case(one: Completion) -> str:
        lines = [f"      words={_quoted(name for option in one.options for name in option.names)}"]
        if one.kinds:
            lines.append(f"      (( COMP_CWORD == {1 + len(one.words)} )) && kinds={_quoted(one.kinds)}")
        choices = [
            f'        {"|".join(o.names)}) COMPREPLY=( $(compgen -W {_quoted(o.choices)} -- "$cur") ); return ;;'
            for o in one.options
            if o.choices
        ]
        return "\n".join([*lines, *(['      case "$prev" in', *choices, "      esac"] if choices else [])])

    return _filled(_BASH, _quoted(COMMANDS), case, found)


def _zsh(found: Sequence[Completion]) -> list[str]:
    def described(word: str, what: str) -> str:
        return shlex.quote(f"{word}:{what}" if what else word)

    def case(one: Completion) -> str:
        lines = []
        if one.kinds:
            lines += [
                f"      if (( CURRENT == {2 + len(one.words)} )) && [[ $PREFIX != -* ]]; then",
                f"        offered=({' '.join(map(shlex.quote, one.kinds))}); _describe kind offered; return",
                "      fi",
            ]
        for option in (option for option in one.options if option.choices):
            tests = " || ".join(f"${{words[CURRENT-1]}} == {name}" for name in option.names)
            choices = " ".join(map(shlex.quote, option.choices))
            lines.append(f"      if [[ {tests} ]]; then compadd -- {choices}; return; fi")
        each = (described(name, option.help) for option in one.options for name in option.names)
        return "\n".join([*lines, f"      offered=({' '.join(each)})"])

    return _filled(_ZSH, " ".join(described(*item) for item in COMMANDS.items()), case, found)


def _fish(found: Sequence[Completion]) -> Iterator[str]:
    def quoted(text: str) -> str:
        return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"

    for name, what in COMMANDS.items():
        yield f"complete -c stepscope -n __fish_use_subcommand -f -a {name} -d {quoted(what)}"
    for one in found:
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in one.words)
        if one.kinds:
            none_yet = f"{seen} ; and not __fish_seen_subcommand_from {' '.join(one.kinds)}"
            yield f"complete -c stepscope -n '{none_yet}' -f -a {quoted(' '.join(one.kinds))}"
        for option in one.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -x -a {quoted(' '.join(option.choices))}" if option.choices else " -r" * option.takes_value
            yield f"complete -c stepscope -n '{seen}' {names}{value} -d {quoted(option.help)}"
