"""The arguments of a command in place of a run: what follows `--` is the command, as it stands."""

import argparse
from collections.abc import Sequence


def take_command(parser: argparse.ArgumentParser, name: str) -> None:
    """Let a parser put what follows `--` into `command`, as it stands.

    argparse itself drops the `--` and so cannot tell a command from a run.
    """
    parser.usage = f"stepscope {name} [options] RUN | stepscope {name} [options] -- COMMAND ..."
    parse = parser.parse_args

    def parse_args(args: Sequence[str]) -> argparse.Namespace:
        words = list(args)
        at = words.index("--") if "--" in words else len(words)
        found = parse(words[:at])
        found.command = words[at + 1 :] if at < len(words) else None
        return found

    parser.parse_args = parse_args  # type: ignore[method-assign, assignment]
