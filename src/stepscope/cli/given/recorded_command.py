"""A command in place of a run: `-- COMMAND ...` is recorded first, and the folder it leaves is the run."""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stepscope.cli.messages import print_stderr, say_with_answer
from stepscope.cli.record import last_words, warnings_before
from stepscope.dataclass import dataclass
from stepscope.errors import InputError, UsageError
from stepscope.record.config import RecordConfig
from stepscope.record.launch.launch import launch, recorded_in


@dataclass(frozen=True)
class RecordedCommand:
    """What a command left behind."""

    folder: Path
    #: negative: ended by that signal
    exit_code: int


def check_one_of_both(args: argparse.Namespace, name: str) -> None:
    """Raise unless the arguments name a run or a command, and not both."""
    if bool(args.run) == bool(args.command):
        found = "both" if args.run else "neither"
        raise UsageError(
            f"give a RUN or -- COMMAND ..., not {found}; e.g. stepscope {name} run-folder, "
            f"stepscope {name} -- torchrun train.py"
        )


def record_command(command: Sequence[str], config: RecordConfig, *, keep_stdout: bool) -> RecordedCommand:
    """Return the run folder of a command after recording it; an `InputError` where it left no trace.

    With `keep_stdout` the job's standard output goes to standard error, so that ours holds the result alone.
    """
    for line in warnings_before(list(command), config):
        print_stderr(f"stepscope: {line}")
    with _stdout_as_stderr() if keep_stdout else _as_it_is():
        launched = launch(command, config)
    with_trace = [folder for folder in launched.folders if recorded_in(folder).traces]
    if not with_trace:
        ended = f"the command ended with exit code {launched.exit_code}; " if launched.exit_code else ""
        why = "; ".join(line for line in last_words(launched, config) if not line.startswith("next:"))
        raise InputError(f"{ended}no trace was recorded: {why}")
    if launched.exit_code:
        say_with_answer(f"stepscope: the command ended with exit code {launched.exit_code}")
    return RecordedCommand(with_trace[-1], launched.exit_code)


@contextmanager
def _stdout_as_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
