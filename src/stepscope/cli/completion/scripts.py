"""What a shell offers after each word, as a script of that shell."""

import shlex
from collections.abc import Iterator, Sequence

from stepscope.cli.completion.offers import Offer, Option
from stepscope.cli.main import COMMANDS


def _names(options: Sequence[Option]) -> str:
    return " ".join(name for option in options for name in option.names)


def bash(found: Sequence[Offer]) -> Iterator[str]:
    """Yield the lines of a script for bash."""
    yield "_stepscope() {"
    yield '  local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words="" kinds=""'
    yield "  if (( COMP_CWORD == 1 )); then"
    yield f'    COMPREPLY=( $(compgen -W {shlex.quote(" ".join(COMMANDS))} -- "$cur") ); return'
    yield "  fi"
    # The longer path comes first: `bench ddp` before `bench`.
    yield '  case "${COMP_WORDS[1]} ${COMP_WORDS[2]} " in'
    for offer in sorted(found, key=lambda offer: -len(offer.words)):
        yield f"    {shlex.quote(' '.join(offer.words) + ' ')}*)"
        yield f"      words={shlex.quote(_names(offer.options))}"
        if offer.kinds:
            yield f"      (( COMP_CWORD == {1 + len(offer.words)} )) && kinds={shlex.quote(' '.join(offer.kinds))}"
        with_choices = [option for option in offer.options if option.choices]
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


def zsh(found: Sequence[Offer]) -> Iterator[str]:
    """Yield the lines of a script for zsh."""
    yield "#compdef stepscope"
    yield "_stepscope() {"
    yield "  local -a offered"
    yield "  if (( CURRENT == 2 )); then"
    yield f"    offered=({' '.join(_described(name, what) for name, what in COMMANDS.items())})"
    yield "    _describe command offered; return"
    yield "  fi"
    yield '  case "${words[2]} ${words[3]} " in'
    for offer in sorted(found, key=lambda offer: -len(offer.words)):
        yield f"    {shlex.quote(' '.join(offer.words) + ' ')}*)"
        if offer.kinds:
            yield f"      if (( CURRENT == {2 + len(offer.words)} )) && [[ $PREFIX != -* ]]; then"
            yield f"        offered=({' '.join(map(shlex.quote, offer.kinds))}); _describe kind offered; return"
            yield "      fi"
        for option in (option for option in offer.options if option.choices):
            tests = " || ".join(f"${{words[CURRENT-1]}} == {name}" for name in option.names)
            yield f"      if [[ {tests} ]]; then compadd -- {' '.join(map(shlex.quote, option.choices))}; return; fi"
        each = (_described(name, option.help) for option in offer.options for name in option.names)
        yield f"      offered=({' '.join(each)})"
        yield "      ;;"
    yield "  esac"
    yield "  if [[ $PREFIX == -* ]]; then _describe option offered; else _files; fi"
    yield "}"
    yield 'if [[ "$funcstack[1]" == "_stepscope" ]]; then _stepscope "$@"; else compdef _stepscope stepscope; fi'


def _described(word: str, what: str) -> str:
    return shlex.quote(f"{word}:{what}" if what else word)


def fish(found: Sequence[Offer]) -> Iterator[str]:
    """Yield the lines of a script for fish."""
    for name, what in COMMANDS.items():
        yield f"complete -c stepscope -n __fish_use_subcommand -f -a {name} -d {_fish_quoted(what)}"
    for offer in found:
        seen = " ; and ".join(f"__fish_seen_subcommand_from {word}" for word in offer.words)
        if offer.kinds:
            none_yet = f"{seen} ; and not __fish_seen_subcommand_from {' '.join(offer.kinds)}"
            yield f"complete -c stepscope -n '{none_yet}' -f -a {_fish_quoted(' '.join(offer.kinds))}"
        for option in offer.options:
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in option.names)
            value = f" -x -a {_fish_quoted(' '.join(option.choices))}" if option.choices else " -r" * option.takes_value
            yield f"complete -c stepscope -n '{seen}' {names}{value} -d {_fish_quoted(option.help)}"


def _fish_quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
