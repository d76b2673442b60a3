"""`stepscope tune`: a first run with its findings, trials of what may help, and what to keep.

first_run      the job recorded once: findings, and what is known of it
trials         the job started again and again, each time with one setting
kept           tune.json: written, and read again by --apply
"""

import argparse
import sys
from pathlib import Path

from stepscope.cli.messages import print_line, say_with_answer
from stepscope.cli.output import check_outputs, make_folder, refuse_used_folder, write_json, write_output
from stepscope.cli.record import shown
from stepscope.cli.tune.first_run import FirstRun, first_run
from stepscope.cli.tune.kept import apply_kept, tune_document
from stepscope.cli.tune.trials import Trials
from stepscope.errors import UsageError
from stepscope.report.text.tune import tune_lines
from stepscope.tune.experiment import MIN_ROUNDS, Experiment, candidates, experiment

RESULT, TEXT = "tune.json", "tune.txt"


def run(args: argparse.Namespace) -> int:
    """Return 0, also where nothing is to be kept, 3 where it was stopped; with --apply the job's own exit code."""
    if not args.command:
        raise UsageError("the job's command is missing; give it after --, e.g. stepscope tune -- torchrun train.py")
    if args.apply:
        return apply_kept(args.apply, args.command)
    if args.rounds < MIN_ROUNDS:
        raise UsageError(f"--rounds {args.rounds}: an interval needs at least {MIN_ROUNDS}")
    check_outputs(args.json, force=args.force)
    refuse_used_folder(args.out, force=args.force)
    folder = make_folder(args.out)
    first = first_run(args.command, folder)
    return 3 if _tune(args, folder, first).stopped else 0


def _tune(args: argparse.Namespace, folder: Path, first: FirstRun) -> Experiment:
    choice = candidates(
        first.job,
        [f.id for f in first.findings],
        inexact=args.allow_inexact,
        compiled=args.compile,
        only=args.only or (),
        most=args.most,
    )
    trials = Trials(
        args.command,
        folder,
        steps=args.steps or first.steps_per_trial,
        warmup=args.warmup,
        limit_s=args.time_limit or first.trial_limit_s,
    )
    trials.announce(len(choice.tried), args.rounds)
    found = experiment(choice.tried, trials, rounds=args.rounds)
    if found.stopped and not found.base:
        raise KeyboardInterrupt
    document = tune_document(found, choice, first, trials, rounds=args.rounds, result=shown(folder / RESULT))
    lines = tune_lines(document)
    write_json(str(folder / RESULT), document, force=args.force)
    write_output(str(folder / TEXT), "\n".join(lines) + "\n", force=args.force)
    write_json(args.json, document, force=args.force)
    if args.json != "-":
        for line in lines:
            print_line(line)
        sys.stdout.flush()
    say_with_answer(f"stepscope tune: kept in {shown(folder / RESULT)} and {TEXT}")
    return found
