"""`stepscope completion`: what a shell offers after each word, as a script for bash, zsh or fish."""

import argparse

from stepscope.cli.completion.offers import offers
from stepscope.cli.completion.scripts import bash, fish, zsh
from stepscope.cli.messages import print_line


def run(args: argparse.Namespace) -> int:
    """Return 0 after printing the script."""
    for line in {"bash": bash, "zsh": zsh, "fish": fish}[args.shell](offers()):
        print_line(line)
    return 0
