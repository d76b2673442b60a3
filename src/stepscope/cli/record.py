"""`stepscope record`: start the job with the recorder in every rank, then say what was recorded."""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Any

from stepscope.cli.arguments.sizes import whole_number
from stepscope.cli.messages import print_stderr
from stepscope.errors import UsageError
from stepscope.record.config import RecordConfig, default_out, ranks_from
from stepscope.record.launch.launch import (
    LaunchOutcome,
    RecordedRun,
    deaf_option,
    launch,
    recorded_in,
    why_not_writable,
)
from stepscope.record.launch.outside_tool import why_not_installed
from stepscope.record.live.export import address_from, collector_from
from stepscope.record.loop.steps import unit_from
from stepscope.record.nccl_log import debug_environment
from stepscope.record.sinks import place_from


def run(args: argparse.Namespace) -> int:
    """Return the command's own exit code."""
    config = _config_of(args)
    command = _command(args.command)
    for line in [*_missing_tools(args), *_in_vain(args), *warnings_before(command, config)]:
        _say(line)
    launched = launch(command, config)
    if _speaks_for_the_job():
        for line in last_words(launched, config):
            _say(line)
    if launched.exit_code < 0:
        _die_of(-launched.exit_code)
    return launched.exit_code


def _config_of(args: argparse.Namespace) -> RecordConfig:
    unit_from(args.step_of)  # a wrong one is said before the job starts
    _refuse_wrong_addresses(args)
    config = RecordConfig(
        out=args.out or default_out(),
        ranks=ranks_from(args.ranks),
        step_of=args.step_of,
        light=args.light,
        record_shapes=args.shapes,
        with_stack=args.stacks,
        owners=not args.no_owners,
        source=not args.no_source,
        profile_memory=args.memory,
        memory=args.memory,
        memory_history=args.memory,
        nccl_log=args.nccl_log,
        debug=tuple(args.debug.split(",")) if args.debug else (),
        metrics=args.metrics,
        otlp=args.otlp,
        on_alarm=args.on_alarm,
        track=tuple(place_from(text) for text in args.track or ()),
        **_outside(args),
    )
    return config.with_steps(*steps_from(args.steps)) if args.steps else config


def _refuse_wrong_addresses(args: argparse.Namespace) -> None:
    if args.metrics is not None:
        address_from(args.metrics)
    if args.otlp is not None:
        collector_from(args.otlp)


def _missing_tools(args: argparse.Namespace) -> list[str]:
    wanted = [tool for tool in ("nsys", "ncu") if getattr(args, tool)]
    return [line for tool in wanted if (line := why_not_installed(tool)) is not None]


def _in_vain(args: argparse.Namespace) -> list[str]:
    if args.on_alarm and (args.nsys or args.ncu):
        return ["--on-alarm pulls no window under another tool, which records its own; leave out --nsys or --ncu"]
    asked = [f"--{name}" for name in ("steps", "shapes", "stacks", "nsys", "ncu") if getattr(args, name)]
    if not args.light or not asked:
        return []
    return [f"--light profiles nothing, so {', '.join(asked)} will not be heeded; leave out --light to have them"]


def _outside(args: argparse.Namespace) -> dict[str, Any]:
    if args.nsys and args.ncu:
        raise UsageError("--nsys and --ncu cannot be used together; record twice")
    tool = "nsys" if args.nsys else "ncu" if args.ncu else None
    if tool is None or why_not_installed(tool) is not None:
        return {}
    kernels = {"kernels": args.kernels} if args.kernels else {}
    return {"outside_tool": tool, "tool": "cuda", "launches": args.launches, **kernels}


def warnings_before(command: list[str], config: RecordConfig) -> list[str]:
    """Return what will keep this job from being recorded, or from the debug output asked for; it runs all the same."""
    lines = list(debug_environment(config.debug, environ=os.environ).remarks)
    deaf = deaf_option(command)
    if deaf:
        lines.append(f"python {deaf} does not look at PYTHONPATH, so it will not be recorded; start it without {deaf}")
    why_not = why_not_writable(config.out)
    if why_not:
        lines.append(f"{why_not}, so nothing will be recorded; give another folder with --out")
    return lines


def last_words(launched: LaunchOutcome, config: RecordConfig) -> list[str]:
    """Return what was recorded and the command to go on with, or why nothing was."""
    runs = [r for r in map(recorded_in, launched.folders) if r.steps]
    outputs = _words_about_outputs(launched, config)
    if not runs:
        return [*outputs, f"no training step was recorded: {_why_nothing(launched, config)}"]
    return [*outputs, *(line for r in runs for line in _words_about(r, launched, config))]


def _words_about_outputs(launched: LaunchOutcome, config: RecordConfig) -> list[str]:
    tool = config.outside_tool
    if tool is None:
        return []
    if not launched.outputs:
        return [f"{tool} wrote nothing: it records where the window opens on a CUDA device, and needs a rank to start"]
    return [f"{tool} wrote {', '.join(shown(path) for path in launched.outputs)}"]


def _words_about(recorded: RecordedRun, launched: LaunchOutcome, config: RecordConfig) -> list[str]:
    what = f"recorded {recorded.steps} steps of {_ranks(len(recorded.ranks))}"
    if recorded.window:
        what += f", profiled steps {recorded.window} of {_ranks(recorded.traces)}"
    lines = [f"{what}, in {shown(recorded.folder)}"]
    if not recorded.described:
        trouble = launched.trouble or "the helper process that writes the run is still at work, or was killed"
        lines.append(f"the run is incomplete: {trouble}")
    if recorded.not_written:
        lines.append(recorded.not_written)
    if recorded.unit is not None and "optimizers:" in recorded.unit:
        lines.append(f"a step is {recorded.unit}; --step-of chooses another unit")
    lines += recorded.warnings
    if not recorded.window and not config.light and config.outside_tool is None:
        lines.append(_why_no_window(recorded, launched, config))
    return [*lines, f"next: stepscope report {shown(recorded.folder)}"]


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _why_no_window(recorded: RecordedRun, launched: LaunchOutcome, config: RecordConfig) -> str:
    if config.ranks is not None and not set(config.ranks) & set(recorded.ranks):
        wanted, last = ",".join(map(str, config.ranks)), max(recorded.ranks, default=0)
        return f"no trace: --ranks {wanted} names none of this job's ranks, 0 to {last}; give one of them, or all"
    if recorded.trouble:
        return f"no trace: {recorded.trouble}"
    first, last = config.wait + config.warmup, recorded.steps_ended
    if recorded.described and last <= first and launched.exit_code:
        return f"no trace: the job ended with {_ending(launched.exit_code)} before the profiled steps, from {first} on"
    if recorded.described and last <= first:
        return f"no trace: the profiled steps begin at {first}; for this job give --steps {max(0, last - 3)}:{last}"
    if launched.trouble and not recorded.described:
        return f"no trace: {launched.trouble}"
    if launched.said:
        return "no trace: see the lines above"
    if launched.exit_code:
        return f"no trace: the job ended with {_ending(launched.exit_code)} before the profiled steps were written"
    return "no trace: no rank left word of what became of the profiled steps"


def _why_nothing(launched: LaunchOutcome, config: RecordConfig) -> str:
    why_not = why_not_writable(config.out)
    if why_not:
        return why_not
    if launched.trouble:
        return launched.trouble
    if not launched.python_seen:
        return "no Python that looks at PYTHONPATH was started (-I, -E and -S keep it from looking)"
    if not launched.torch_seen:
        return "no process imported torch"
    if launched.exit_code:
        return f"the job ended with {_ending(launched.exit_code)} before its first steps were written"
    return "no optimizer stepped; a loop that trains in another way can mark its steps with stepscope.profile"


def _ending(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def _command(words: list[str]) -> list[str]:
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise UsageError("the job's command is missing; give it after --, e.g. stepscope record -- torchrun train.py")
    return command


def steps_from(text: str) -> tuple[int, int]:
    """Return first and last step (exclusive) of `10:15`."""
    first, colon, last = text.partition(":")
    numbers = whole_number(first), whole_number(last)
    if not colon or numbers[0] is None or numbers[1] is None:
        raise UsageError(f"--steps {text!r}: write FIRST:LAST such as 10:15, which ends with step 14")
    return numbers[0], numbers[1]


def _speaks_for_the_job() -> bool:
    return os.environ.get("SLURM_PROCID", "0") == "0"


def shown(folder: Path) -> str:
    """Return the folder as the user would type it: relative where it lies below the current one."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


def _say(line: str) -> None:
    print_stderr(f"stepscope: {line}")


def _die_of(number: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if number != signal.SIGKILL:  # whose handling is nobody's to set
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
