"""The `stepscope` command: read the arguments, let the command run, turn errors into one line and an exit code."""

import argparse
import errno
import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from io import TextIOWrapper
from typing import IO, TYPE_CHECKING, NoReturn

from stepscope.additions import COMMANDS as ADDED
from stepscope.cli.arguments import HelpFormatter, LazyParser
from stepscope.cli.outputs import check_outputs, lines_held, print_stderr, quiet
from stepscope.errors import DEBUG, StepscopeError, UsageError, debugging, did_you_mean
from stepscope.units import printable
from stepscope.version import __version__

# Exit code and error message of a command, for any exception.
#
# 0 is success, 1 a failed gate, 2 an error, 3 a partial result. An unexpected exception is 2 as well, since 1 would
# read as a gate; `STEPSCOPE_DEBUG=1` prints its traceback.

MAX_SENTENCE = 2000
_FAILED = 2
_STOPPED = 130
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)


def run_to_exit_code(name: str, command: Callable[[], int]) -> int:
    """Return the exit code of a command after running it; an exception becomes one sentence."""
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
        import traceback  # only on errors

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
    """Open each of the three standard streams that is closed, and replace characters that cannot be encoded.

    Otherwise the next file opened would get a closed stream's number, and the output of children would end up in it.
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


if TYPE_CHECKING:
    from _typeshed import SupportsWrite

# Each command is a module here: help text, `add_arguments` and `run`. It is imported only when needed.
GROUPS = {
    "most used": {
        "record": "record every rank of a PyTorch job, with no code change",
        "report": "show what to fix and where the step goes; start here",
        "view": "open report, tables and timeline in the browser",
        "code": "list cost and potential saving per source line",
        "whatif": "predict the step time with a fix or a faster network",
        "compare": "find significant differences between two runs; gates for CI",
        "memory": "show device memory over the step: categories, peak, growth",
        "watch": "watch a running job live: steps/s, stragglers, alarms",
        "hang": "find hung ranks in flight recorder dumps",
        "demo": "record and report a small job with a planted fault",
    },
    "more": {
        "health": "run pass/fail checks per rank; for CI",
        "investigate": "write analysis and validation of a fix into one Markdown file",
        "history": "show runs over time by commit and host",
        "job": "show goodput of a whole job, across restarts",
        "ops": "list operators with time, calls, shapes and memory",
        "sql": "query the tables of a run with SQL",
        "export": "write a merged timeline, tables or TensorBoard files",
        "import": "add Nsight, NCCL or PyTorch files to a run",
        "trigger": "profile a running job without restarting it",
        "doctor": "check what is installed and what works here",
        "mcp": "serve the analysis to coding agents as MCP tools",
    },
}
# those of rooms above the profiler, as `additions` describes them
_ADDED = {name: found for commands in ADDED.values() for name, found in commands.items()}
GROUPS |= {room: {name: found[0] for name, found in commands.items()} for room, commands in ADDED.items()}
_EXAMPLES = """examples:
  stepscope record -- torchrun --nproc-per-node=8 train.py
  stepscope report stepscope-run/
  stepscope view stepscope-run/

`stepscope COMMAND --help` describes a command."""
COMMANDS = {name: what for group in GROUPS.values() for name, what in group.items()}

# commands that start no job
_DESK = {"report", "compare", "whatif", "code", "memory", "hang", "export", "sql", "view", "history", "job"}
_BLAS_THREADS = "OPENBLAS_NUM_THREADS"
_QUIET = {"-q", "--quiet"}
_VERBOSE = {"-v", "--verbose"}


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ").split(" ")[0].split("=")[0]
        if unknown.startswith("--") and message.startswith("unrecognized"):
            near = did_you_mean(unknown, [o for o in self._option_string_actions if o.startswith("--")])
            message = f"{message}; {near}" if near.startswith("did") else message
        self.exit(2, f"{self.prog}: {printable(message, width=MAX_SENTENCE)}; see `{self.prog} --help`\n")

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        if message:
            (file or sys.stderr).write(message)


def main(argv: list[str] | None = None) -> int:
    """Return the exit code of one command line (the contract lists the codes)."""
    given = sys.argv[1:] if argv is None else argv
    arguments, verbosity = _split_verbosity(given)
    with ExitStack() as settings:
        if _QUIET & verbosity:
            settings.enter_context(quiet())
        if arguments and arguments[0] in _DESK and _BLAS_THREADS not in os.environ:
            settings.enter_context(_with_variable(_BLAS_THREADS, "1"))  # NumPy starts some that wait in a busy loop
        if not arguments or arguments[0] not in COMMANDS:
            return run_to_exit_code("stepscope", lambda: _no_command(_parser(), arguments))
        details = ["--verbose"] if _VERBOSE & verbosity else []
        return run_to_exit_code(f"stepscope {arguments[0]}", lambda: _command(arguments[0], *details, *arguments[1:]))


def _split_verbosity(given: Sequence[str]) -> tuple[list[str], set[str]]:
    own = given.index("--") if "--" in given else len(given)
    others = [word for word in given[:own] if word not in _QUIET | _VERBOSE]
    return [*others, *given[own:]], set(given[:own]) - set(others)


@contextmanager
def _with_variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _command(name: str, *arguments: str) -> int:
    command = command_parser(name)
    _refuse_dashes_as_value(command, arguments)
    args = command.parse_args(list(arguments))
    if hasattr(args, "html"):
        check_outputs(args.json, args.html, force=args.force)  # before the work starts
    run = import_module(_modules(name)[0]).run
    thresholds = gc.get_threshold()
    gc.set_threshold(200_000, *thresholds[1:])  # imports make many objects and little garbage
    try:
        if any("://" in word for word in arguments):
            from stepscope.cli.run import run_on_copies

            return run_on_copies(name, run, args)
        return int(run(args))
    finally:
        gc.set_threshold(*thresholds)
        if later := sys.modules.get("stepscope.cache_files"):  # where the command read anything
            later.wait_for_all()


def command_parser(name: str) -> argparse.ArgumentParser:
    """Return the parser of one command."""
    module = import_module(_modules(name)[-1])
    command = _OneLineParser(
        prog=f"stepscope {name}",
        description=module.__doc__,
        formatter_class=HelpFormatter,
    )
    module.add_arguments(command)
    _add_verbosity(command)
    return command


# how shtab's scripts complete the name of a file
_FILES = {
    "bash": "_shtab_compgen_files",
    "zsh": "_files",
    "tcsh": "f",
    "fish": "(__fish_complete_path (commandline -ct))",
}


def full_parser() -> argparse.ArgumentParser:
    """Return one parser of all commands, from which shtab writes shell completion."""
    parser = _parser()
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, what in COMMANDS.items():
        command = command_parser(name)
        _complete_files(command)
        commands.add_parser(name, help=what, parents=[command], add_help=False)
    return parser


def _complete_files(parser: argparse.ArgumentParser) -> None:
    if isinstance(parser, LazyParser):
        parser.fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for kind in action.choices.values():
                _complete_files(kind)
        elif action.choices is None and action.nargs != 0:
            action.complete = _FILES  # type: ignore[attr-defined]


def _modules(name: str) -> tuple[str, ...]:
    return _ADDED[name][1:] if name in _ADDED else (f"stepscope.cli.{name}",)


def _refuse_dashes_as_value(command: argparse.ArgumentParser, arguments: tuple[str, ...]) -> None:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for word in own:
        option, sign, value = word.partition("=")
        if option.startswith("--") and sign and value == "--":
            command.error(f"argument {option}: '--' is not a value")


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listings = (
        f"{group}:\n" + "\n".join(f"  {name:<{width}}  {what}" for name, what in commands.items())
        for group, commands in GROUPS.items()
    )
    parser = _OneLineParser(
        prog="stepscope",
        usage="stepscope COMMAND ...",
        description="Where did the training step go, and how much time would each fix save?",
        epilog="\n\n".join([*listings, _EXAMPLES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_verbosity(parser)
    parser.add_argument("-V", "--version", action="version", version=f"stepscope {__version__}")
    return parser


def _add_verbosity(parser: argparse.ArgumentParser) -> None:
    never = argparse.SUPPRESS
    parser.add_argument("-q", "--quiet", action="store_true", default=never, help="no warnings, notes or progress")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all details")


def _no_command(parser: argparse.ArgumentParser, arguments: list[str]) -> int:
    if arguments and not arguments[0].startswith("-"):
        raise UsageError(f"unknown command {arguments[0]!r}; {did_you_mean(arguments[0], COMMANDS)}")
    if not arguments:
        parser.print_help(sys.stderr)
        return 2
    parser.parse_args(arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
