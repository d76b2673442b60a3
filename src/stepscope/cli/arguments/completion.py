"""Completion of commands and options in your shell, written from the parsers themselves.

examples:
  stepscope completion bash > ~/.local/share/bash-completion/completions/stepscope
  stepscope completion zsh > ~/.zfunc/_stepscope
  stepscope completion fish > ~/.config/fish/completions/stepscope.fish

For this shell only: eval "$(stepscope completion bash)". Write it again after an update.
"""

import argparse

_SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", metavar="SHELL", choices=_SHELLS, help=", ".join(_SHELLS))
