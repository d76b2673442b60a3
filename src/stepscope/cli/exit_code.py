"""Exit code and error message of a command, whatever it raises.

0 is success, 1 a failed gate, 2 an error, 3 a partial result. An unexpected exception is 2 as well, since 1 would read
as a gate; `STEPSCOPE_DEBUG=1` prints its traceback.
"""

import errno
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import IO

from stepscope.cli.messages import lines_held, print_stderr
from stepscope.errors import DEBUG, StepscopeError, debugging
from stepscope.units import printable

MAX_SENTENCE = 2000
_FAILED = 2
_STOPPED = 130
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def run_to_exit_code(name: str, command: Callable[[], int]) -> int:
    """Return the exit code of a command after running it; what it raises is said in one sentence."""
    _open_standard_streams()
    with lines_held() as about_the_answer:
        try:
            with warnings.catch_warnings():
                if not debugging():
                    warnings.simplefilter("ignore")  # of libraries, about our use of them: nothing a user could act on
                try:
                    code = command()
                except SystemExit:
                    sys.stdout.flush()
                    raise
            sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - this is where every one of them ends
            code = _after(name, error)
    if code != _FAILED:
        with suppress(OSError, ValueError):  # standard error is closed
            for line in about_the_answer or ():
                print_stderr(line)
        _give_up_if_broken(sys.stderr)
    return code


def _after(name: str, error: BaseException) -> int:
    if debugging() and not isinstance(error, BrokenPipeError | KeyboardInterrupt):
        import traceback  # only where something went wrong

        traceback.print_exception(error)
    _give_up_if_broken(sys.stdout)
    if isinstance(error, BrokenPipeError):  # the reader of our output left, as `head` does
        return 0
    with suppress(OSError, ValueError):  # standard error is closed
        print_stderr(f"{name}: {printable(_sentence(error), width=MAX_SENTENCE)}")
    _give_up_if_broken(sys.stderr)
    if isinstance(error, KeyboardInterrupt):
        return _STOPPED
    return error.exit_code if isinstance(error, StepscopeError) else _FAILED


def _sentence(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "stopped"
    if isinstance(error, StepscopeError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory; give fewer ranks or smaller files, or use a larger machine"
    if isinstance(error, OSError) and error.errno is not None:
        why = error.strerror or errno.errorcode.get(error.errno, str(error))
        if error.filename is not None:
            name = os.fsdecode(error.filename) if isinstance(error.filename, bytes) else str(error.filename)
            return f"cannot use {name}: {why}; check that it is there and that you may use it"
        if error.errno in _OUTPUT_FULL:
            return f"cannot write the output: {why}; send it to a place that can be written"
        return f"the system refused: {why}; free what is short, or try another place"
    said = " ".join(str(error).split()) or "no message"
    return (
        f"stepscope failed ({type(error).__name__}: {printable(said, width=300)}); "
        f"set {DEBUG}=1 to see where, and please report it"
    )


def _give_up_if_broken(stream: IO[str]) -> None:
    try:
        stream.flush()
    except (OSError, ValueError):
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


def _open_standard_streams() -> None:
    """Put something at each of the three standard numbers that is closed, and let no letter be one too many.

    A number left free would be given to the next file opened, and what children print would end up in it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # only for reading: what is written to a closed output is an error, not nothing
            os.open(os.devnull, os.O_WRONLY if number == 2 else os.O_RDONLY)
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace" if stream is sys.stderr else "replace")
