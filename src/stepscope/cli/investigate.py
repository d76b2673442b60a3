"""Why is a step slow, and did the fix help? One Markdown file from `health`, `report`, `code` and `compare` in order.

examples:
  stepscope investigate run-folder/
  stepscope investigate run-folder/ --fixed second-run/
  stepscope investigate run-folder/ --fixed second-run/ --out notes.md
  stepscope investigate -- torchrun --nproc-per-node=8 train.py

A command is recorded first. The file is investigation.md in the run folder, with a number where there is one already.
"""

import argparse
import io
import json
import os
import re
import shlex
import tempfile
from contextlib import redirect_stdout
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from stepscope.cli.arguments import above_zero, add_json, add_run_arguments, add_run_options, take_command
from stepscope.cli.main import command_parser
from stepscope.cli.outputs import check_outputs, say_with_answer, write_json, write_output
from stepscope.cli.record import check_one_of_both, record_command, shown
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError, UsageError
from stepscope.record.config import RecordConfig, default_out
from stepscope.units import printable

_QUESTIONS = {
    "health": "Baseline: how long is a step, and what is out of range?",
    "report": "Category and root cause: what is the step spent on, and what would a fix save?",
    "code": "Detail: which lines and modules take the time?",
    "compare": "Validation: did the fix save what was predicted?",
}
_PARTIAL = 3
_MAX_LINE = 1000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "investigate")
    add_run_arguments(parser, needed=False)
    parser.add_argument("--fixed", metavar="RUN2", help="the run with the fix: did it save what was predicted?")
    parser.add_argument(
        "--fixed-unprofiled-step-ms", type=above_zero, metavar="X", help="RUN2's step without the profiler"
    )
    parser.add_argument("--out", metavar="PATH", help="the Markdown file; the run folder, where a command is recorded")
    add_json(parser, "what each command gives as JSON")


def run(args: argparse.Namespace) -> int:
    """Return 0, or 3 if a rank could not be read or the command failed."""
    check_one_of_both(args, "investigate")
    check_outputs(args.json, None if args.command else args.out, force=args.force)
    failed = False
    if args.command:
        failed = record_command(args, RecordConfig(out=args.out or default_out(), record_shapes=True))
    if args.fixed and len(args.run) > 1:
        raise UsageError("--fixed compares two runs; give the first one as a folder or a quoted glob")
    name, date = " ".join(args.run), datetime.now(UTC).isoformat(timespec="seconds")
    parts = [f"# Investigation of {printable(name, width=300)}\n\n{date}\n"]
    documents: dict[str, Any] = {}
    for number, (command, question) in enumerate(_QUESTIONS.items(), 1):
        lines, documents[command], is_partial = _answer(command, args)
        failed |= is_partial
        parts.append(f"\n## {number}. {question}\n\n" + "".join(f"    {_line(line)}".rstrip() + "\n" for line in lines))
    write_json(
        args.json, {"schema": SCHEMA, "date": date, "run": name, "fixed": args.fixed, **documents}, force=args.force
    )
    if args.json != "-":
        write_output("-", "".join(parts), force=True)
    _write(args, "".join(parts))
    return _PARTIAL if failed else 0


def _answer(command: str, args: argparse.Namespace) -> tuple[list[str], Any, bool]:
    """Return what a command prints after its command line, its JSON, and whether it is partial."""
    if command == "compare" and not args.fixed:
        again = shlex.join(["stepscope", "investigate", *args.run, "--fixed", "RUN2"])
        return ["Not done yet: fix the first finding, record again, and run", again], None, False
    module, given = import_module(f"stepscope.cli.{command}"), command_parser(command).parse_args(["RUN"])
    options = {name: value for name, value in _options(args).items() if hasattr(given, name)}
    runs = {"run": args.run, "sides": [*args.run, args.fixed]}
    words = runs["sides" if command == "compare" else "run"]
    first = shlex.join(["stepscope", command, *words, *map(_option, options, options.values())])
    for name, value in {**runs, **options}.items():
        setattr(given, name, value)
    with tempfile.TemporaryDirectory() as folder, io.TextIOWrapper(io.BytesIO(), encoding="utf-8") as out:
        given.json = str(Path(folder) / "answer.json")
        try:
            with redirect_stdout(out):
                code = module.run(given)
        except InputError as error:
            if command != "code":  # lines may not have been recorded
                raise
            return [first, str(error)], None, False
        out.flush()
        text = re.sub(r"\x1b\[[\d;]*m", "", out.buffer.getvalue().decode())
        document = json.loads(Path(given.json).read_text())
    return [first, "", *text.splitlines()], document, code == _PARTIAL


def _line(text: str) -> str:
    return printable(text, width=_MAX_LINE)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the given options of how runs are read."""
    parser = argparse.ArgumentParser()
    add_run_options(parser)
    usual = vars(parser.parse_args([]))
    found = {name: getattr(args, name) for name in usual}
    steps = {"unprofiled_step_ms_a": args.unprofiled_step_ms, "unprofiled_step_ms_b": args.fixed_unprofiled_step_ms}
    return {name: value for name, value in {**found, **steps}.items() if value != usual.get(name)}


def _option(name: str, value: Any) -> str:
    option = f"--{name.replace('_', '-')}"
    return option if value is True else f"{option}={value}"


def _write(args: argparse.Namespace, text: str) -> None:
    folder = Path(args.run[0])
    out = None if args.command else args.out
    if out is None and (len(args.run) > 1 or not folder.is_dir()):
        say_with_answer("stepscope investigate: no file was written, as this is no run folder; --out FILE writes one")
        return
    numbered = (folder / f"investigation{f'-{n}' * (n > 1)}.md" for n in count(1))
    out = out or str(next(path for path in numbered if not os.path.lexists(path)))
    if out != "-":
        write_output(out, text, force=args.force)
        say_with_answer(f"stepscope investigate: written to {shown(Path(out))}")
