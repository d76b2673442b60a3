"""Record every rank of a PyTorch job, with no code change.

examples:
  stepscope record -- torchrun --nproc-per-node=8 train.py --lr 1e-4
  stepscope record --light -- python train.py
  stepscope record --steps 100:105 --ranks 0,3 --out runs/base -- srun python train.py
  stepscope record --light --metrics 9400 -- torchrun --nproc-per-node=8 train.py
  stepscope record --light --on-alarm 5 -- torchrun --nproc-per-node=8 train.py

Steps and regions (data loading, forward, backward, gradient sync, optimizer step) are found by themselves. All steps
are timed on all ranks; a few are profiled (--steps), the others show what the profiler itself cost. The command's
output, exit code and results stay as they are.
"""

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.arguments import add_flags, add_options, at_least_one, whole_number
from stepscope.cli.outputs import print_stderr, say_with_answer
from stepscope.errors import InputError, UsageError
from stepscope.record.config import RecordConfig, default_out, ranks_from
from stepscope.record.nccl_log import SWITCHES, debug_environment

if TYPE_CHECKING:
    from stepscope.record.launch.launch import LaunchOutcome, RecordedRun


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.usage = "stepscope record [options] -- COMMAND ..."
    window = {
        "--out": ("DIR", "run folder (default: $TORCH_TRACE_DIR, else ./stepscope-run)"),
        "--steps": ("FIRST:LAST", "steps to profile, from 0, LAST exclusive (10:15)"),
    }
    add_options(parser, window)
    parser.add_argument("--ranks", default="all", metavar="all|0,3", help="ranks to profile; all time their steps")
    parser.add_argument(
        "--step-of", metavar="UNIT", help="what a step is: loader, optimizer, 4 (optimizer steps), Adam#1"
    )
    parser.add_argument("--light", action="store_true", help="time steps and regions only, no profiler")
    details = {
        "--shapes": "record operator shapes",
        "--stacks": "record Python stacks",
        "--no-owners": "no step with Python frames after the profiled ones",
        "--no-source": "keep no text of your files in the run folder",
        "--graphs": "record lines inside CUDA graphs and compiled kernels; watches captures with the profiler",
        "--memory": "record memory: every step, and CUDA's memory history",
        "--nccl-log": "keep NCCL's own log of each rank",
    }
    add_flags(parser, details)
    outputs = {
        "--debug": ("SWITCH,...", f"debug output of torch: {', '.join(SWITCHES)}"),
        "--metrics": ("[HOST:]PORT", "serve Prometheus metrics there, each rank on its port"),
    }
    add_options(parser, outputs)
    parser.add_argument(
        "--on-alarm",
        type=at_least_one,
        metavar="N",
        help="profile N steps automatically if a rank falls behind or steps get slower",
    )
    parser.add_argument("--nsys", action="store_true", help="run the chosen ranks under Nsight Systems instead")
    parser.add_argument("--ncu", action="store_true", help="run the chosen ranks under Nsight Compute instead")
    parser.add_argument("--kernels", metavar="NAME", help="kernels for --ncu, a name or regex:... (all but NCCL's)")
    parser.add_argument("--launches", type=at_least_one, default=20, metavar="N", help="launches for --ncu (20)")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND ...", help="the job, as you start it")


def run(args: argparse.Namespace) -> int:
    """Return the command's own exit code."""
    from stepscope.record.launch.launch import launch
    from stepscope.record.launch.outside_tool import why_not_installed

    config = _config_of(args)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise UsageError("the job's command is missing; give it after --, e.g. stepscope record -- torchrun train.py")
    missing = [why_not_installed(tool) for tool in ("nsys", "ncu") if getattr(args, tool)]
    for line in [*filter(None, missing), *_ignored_options(args), *warnings_before(command, config)]:
        print_stderr(f"stepscope: {line}")
    launched = launch(command, config)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        for line in last_words(launched, config):
            print_stderr(f"stepscope: {line}")
    if launched.exit_code < 0:
        _die_of(-launched.exit_code)
    return launched.exit_code


def _config_of(args: argparse.Namespace) -> RecordConfig:
    from stepscope.record.launch.outside_tool import why_not_installed
    from stepscope.record.loop.steps import unit_from

    # wrong values are reported before the job starts
    unit_from(args.step_of)
    if args.metrics is not None:
        from stepscope.record.live.export import address_from  # with an HTTP server: only here

        address_from(args.metrics)
    if args.nsys and args.ncu:
        raise UsageError("--nsys and --ncu cannot be used together; record twice")
    tool = "nsys" if args.nsys else "ncu" if args.ncu else None
    outside: dict[str, Any] = {}
    if tool and why_not_installed(tool) is None:
        outside = {"outside_tool": tool, "tool": "cuda", "launches": args.launches}
        if args.kernels:
            outside["kernels"] = args.kernels
    config = RecordConfig(
        out=args.out or default_out(),
        ranks=ranks_from(args.ranks),
        step_of=args.step_of,
        light=args.light,
        record_shapes=args.shapes,
        with_stack=args.stacks,
        owners=not args.no_owners,
        source=not args.no_source,
        graphs=args.graphs,
        profile_memory=args.memory,
        memory=args.memory,
        memory_history=args.memory,
        nccl_log=args.nccl_log,
        debug=tuple(args.debug.split(",")) if args.debug else (),
        metrics=args.metrics,
        on_alarm=args.on_alarm,
        **outside,
    )
    return config.with_steps(*steps_from(args.steps)) if args.steps else config


def _ignored_options(args: argparse.Namespace) -> list[str]:
    if args.on_alarm and (args.nsys or args.ncu):
        return ["--on-alarm pulls no window under another tool, which records its own; leave out --nsys or --ncu"]
    given = [f"--{name}" for name in ("steps", "shapes", "stacks", "nsys", "ncu") if getattr(args, name)]
    if not args.light or not given:
        return []
    return [f"--light profiles nothing, so {', '.join(given)} will not be heeded; leave out --light to have them"]


def _die_of(number: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    if number != signal.SIGKILL:  # which cannot be handled
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


# What a recorded job leaves


def warnings_before(command: list[str], config: RecordConfig) -> list[str]:
    """Return what prevents this job from being recorded, or the debug output; it runs all the same."""
    from stepscope.record.launch.launch import deaf_option, why_not_writable

    lines = list(debug_environment(config.debug, environ=os.environ).remarks)
    if deaf := deaf_option(command):
        lines.append(f"python {deaf} ignores PYTHONPATH, so it will not be recorded; start it without {deaf}")
    if why_not := why_not_writable(config.out):
        lines.append(f"{why_not}, so nothing will be recorded; give another folder with --out")
    return lines


def last_words(launched: "LaunchOutcome", config: RecordConfig) -> list[str]:
    """Return what was recorded and the command to go on with, or why nothing was."""
    from stepscope.record.launch.launch import recorded_in

    lines = []
    if tool := config.outside_tool:
        lines.append(
            f"{tool} wrote {', '.join(shown(path) for path in launched.outputs)}"
            if launched.outputs
            else f"{tool} wrote nothing: it records where the window opens on a CUDA device, and needs a rank to start"
        )
    runs = [r for r in map(recorded_in, launched.folders) if r.steps]
    if not runs:
        lines.append(f"no training step was recorded: {_why_nothing(launched, config)}")
    for recorded in runs:
        what = f"recorded {recorded.steps} steps of {_ranks(len(recorded.ranks))}"
        if recorded.window:
            what += f", profiled steps {recorded.window} of {_ranks(recorded.traces)}"
        lines.append(f"{what}, in {shown(recorded.folder)}")
        if recorded.shortened:
            lines.append(recorded.shortened)
        if not recorded.described:
            trouble = launched.trouble or "the helper process that writes the run is still at work, or was killed"
            lines.append(f"the run is incomplete: {trouble}")
        if recorded.not_written:
            lines.append(recorded.not_written)
        if recorded.unit is not None and "optimizers:" in recorded.unit:
            lines.append(f"a step is {recorded.unit}; --step-of chooses another unit")
        lines += recorded.warnings
        if not recorded.traces and not config.light and config.outside_tool is None:
            lines.append(f"no trace: {_why_no_window(recorded, launched, config)}")
        lines.append(f"next: stepscope report {shown(recorded.folder)}")
    if (alone := sum(r.is_without_rank for r in runs)) > 1:
        lines.append(
            f"{alone} processes trained and had no rank, so each is a separate run: "
            "to record one run set RANK and WORLD_SIZE in each, or start them with torchrun"
        )
    return lines


def _ranks(number: int) -> str:
    return "1 rank" if number == 1 else f"{number} ranks"


def _why_no_window(recorded: "RecordedRun", launched: "LaunchOutcome", config: RecordConfig) -> str:
    if config.ranks is not None and not set(config.ranks) & set(recorded.ranks):
        wanted, last = ",".join(map(str, config.ranks)), max(recorded.ranks, default=0)
        return f"--ranks {wanted} names none of this job's ranks, 0 to {last}; give one of them, or all"
    if recorded.trouble:
        return recorded.trouble
    first, last = config.wait + config.warmup, recorded.steps_ended
    if recorded.described and last <= first and launched.exit_code:
        return f"the job ended with {_ending(launched.exit_code)} before the profiled steps, from {first} on"
    if recorded.described and last <= first:
        return f"the profiled steps begin at {first}; for this job give --steps {max(0, last - 3)}:{last}"
    if launched.trouble and not recorded.described:
        return launched.trouble
    if launched.said:
        return "see the lines above"
    if launched.exit_code:
        return f"the job ended with {_ending(launched.exit_code)} before the profiled steps were written"
    return "no rank left word of what became of the profiled steps"


def _why_nothing(launched: "LaunchOutcome", config: RecordConfig) -> str:
    from stepscope.record.launch.launch import why_not_writable

    if why_not := why_not_writable(config.out) or launched.trouble:
        return why_not
    if not launched.python_seen:
        return "no Python that reads PYTHONPATH was started (-I, -E and -S ignore it)"
    if not launched.torch_seen:
        return "no process imported torch"
    if launched.exit_code:
        return f"the job ended with {_ending(launched.exit_code)} before its first steps were written"
    return "no optimizer stepped; a loop that trains in another way can mark its steps with stepscope.profile"


def _ending(exit_code: int) -> str:
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def steps_from(text: str) -> tuple[int, int]:
    """Return first and last step (exclusive) of `10:15`."""
    first, colon, last = text.partition(":")
    numbers = whole_number(first), whole_number(last)
    if not colon or numbers[0] is None or numbers[1] is None:
        raise UsageError(f"--steps {text!r}: write FIRST:LAST such as 10:15, which ends with step 14")
    return numbers[0], numbers[1]


def shown(folder: Path) -> str:
    """Return the folder as the user would type it: relative if it is below the current one."""
    here = Path.cwd()
    return str(folder.relative_to(here)) if folder.is_relative_to(here) else str(folder)


# A command in place of a run: `stepscope health -- COMMAND ...`


def check_one_of_both(args: argparse.Namespace, name: str) -> None:
    """Raise unless the arguments name a run or a command, and not both."""
    if bool(args.run) == bool(args.command):
        found = "both" if args.run else "neither"
        raise UsageError(
            f"give a RUN or -- COMMAND ..., not {found}; e.g. stepscope {name} run-folder, "
            f"stepscope {name} -- torchrun train.py"
        )


def record_command(args: argparse.Namespace, config: RecordConfig) -> bool:
    """Return whether the arguments' command failed, after recording it; its run folder becomes `args.run`.

    With `--json -` the job's standard output goes to standard error, so that ours holds the result alone.
    """
    from stepscope.record.launch.launch import launch, recorded_in

    for line in warnings_before(list(args.command), config):
        print_stderr(f"stepscope: {line}")
    with _job_output(to_stderr=args.json == "-"):
        launched = launch(args.command, config)
    with_trace = [folder for folder in launched.folders if recorded_in(folder).traces]
    ended = f"the command ended with exit code {launched.exit_code}"
    if not with_trace:
        why = "; ".join(line for line in last_words(launched, config) if not line.startswith("next:"))
        raise InputError(f"{f'{ended}; ' if launched.exit_code else ''}no trace was recorded: {why}")
    if launched.exit_code:
        say_with_answer(f"stepscope: {ended}")
    args.run = [str(with_trace[-1])]
    return bool(launched.exit_code)


@contextmanager
def _job_output(*, to_stderr: bool) -> Iterator[None]:
    if not to_stderr:
        yield
        return
    sys.stdout.flush()
    stdout = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
