"""What a command says in plain lines: the one place that prints, so that no name in a line steers the terminal.

Tables and colours go through `report.terminal`, which does the same for what it prints.
"""

import sys

from stepscope.units import escaped, printable

MAX_WARNING = 400


def print_line(line: str = "") -> None:
    """Print one line on standard output, and let it be seen at once."""
    print(escaped(line), flush=True)


def print_stderr(line: str) -> None:
    """Print one line on standard error."""
    print(escaped(line), file=sys.stderr, flush=True)


def warn(line: str) -> None:
    """Print one line on standard error about what the answer lacks."""
    print_stderr(f"warning: {printable(line, width=MAX_WARNING)}")
