"""Did a change make the training step slower? Runs base and head in turn on this machine; a gate for pull requests.

examples:
  stepscope gate --base origin/main -- python train.py --steps 1000
  stepscope gate --base v1.2 --head v1.3 --threshold 5 -- torchrun --nproc-per-node=2 train.py
  stepscope gate --base ../main-checkout -- python train.py
  stepscope gate --base 'python old.py' --head 'python new.py' --markdown summary.md --bencher bencher.json

With a command after --, base and head are git revisions or folders with a checkout, and head is the current folder
unless given. Without one they are two commands. Both jobs run at the same time and take turns of a few steps; one that
uses a GPU starts anew in every round. Exit code 1 is a regression.
"""

import argparse
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.record import shown
from stepscope.cli.run_arguments import (
    above_zero,
    add_force,
    add_options,
    at_least_one,
    check_outputs,
    is_quiet,
    make_folder,
    print_line,
    print_stderr,
    refuse_used_folder,
    say_with_answer,
    take_command,
    write_json,
    write_output,
)
from stepscope.cli.tune import run_trial
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.record.config import WAIT_STEPS, WARMUP_STEPS
from stepscope.record.window.schedule import NEVER
from stepscope.records import dataclass
from stepscope.units import NS_PER_MS

if TYPE_CHECKING:
    from stepscope.compare.document import LineChange, Lines
    from stepscope.compare.regression import Floats, Round

RESULT = "gate.json"
# rounds before the first test
_TURNS, _RESTARTS = 64, 16
# short enough for both to see the same load of the machine
_TURN_MS = 100
_MAX_TURN = 300
# after a start, untimed
_WARM_TURNS = 2
_TIMED_MS = 4000
_FIRST_STEPS = 25
# of each side, to name the lines
_RECORDINGS = 3
_RECORDED_STEPS = 10
_MAX_LINES = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    take_command(parser, "gate")
    parser.usage = (
        "stepscope gate [options] --base REVISION|FOLDER -- COMMAND ...\n"
        "       stepscope gate [options] --base COMMAND --head COMMAND"
    )
    parser.add_argument("--base", metavar="X", required=True, help="revision or folder before the change, or a command")
    parser.add_argument("--head", metavar="X", help="the same after the change (default: the current folder)")
    parser.add_argument(
        "--threshold", type=above_zero, default=3.0, metavar="PCT", help="smallest regression that matters, in %% (3)"
    )
    parser.add_argument(
        "--false-alarms", type=above_zero, default=2.0, metavar="PCT", help="at most, of gates without a change (2 %%)"
    )
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        metavar="N",
        help=f"rounds before the first test ({_TURNS}; {_RESTARTS} with --restart)",
    )
    parser.add_argument("--max-rounds", type=at_least_one, metavar="N", help="if undecided (4 times --rounds)")
    parser.add_argument(
        "--restart", action="store_true", help="start the jobs anew in every round, instead of stopping them in turn"
    )
    parser.add_argument(
        "--steps", type=at_least_one, metavar="N", help="steps of a turn (about 0.1 s), or of a trial (about 4 s)"
    )
    parser.add_argument("--time-limit", type=above_zero, metavar="S", help="of a trial, in seconds (5 times the first)")
    parser.add_argument("--no-lines", action="store_true", help="do not record a regression to name its source lines")
    parser.add_argument("--out", metavar="DIR", default="stepscope-gate", help="folder of the trials (stepscope-gate)")
    parser.add_argument("--name", metavar="NAME", default="training step", help="of the benchmark in --bencher")
    outputs = {
        "--json": ("PATH", "write the result as JSON; - for standard output"),
        "--markdown": ("PATH", "write a summary for a pull request; - for standard output"),
        "--bencher": ("PATH", "write Bencher Metric Format; - for standard output"),
    }
    add_options(parser, outputs)
    add_force(parser)


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 on a regression, 3 if it was stopped before it was decided."""
    from stepscope.compare.regression import (
        BASE,
        HEAD,
        MIN_ROUNDS,
        REGRESSION,
        bencher_metrics,
        interleaved,
        looks_of,
        regression_document,
    )
    from stepscope.report.text.gate import gate_lines, gate_markdown

    for name, given in (("rounds", args.rounds), ("max-rounds", args.max_rounds)):
        if given is not None and given < MIN_ROUNDS:
            raise UsageError(f"--{name} {given}: an interval needs at least {MIN_ROUNDS}")
    if args.rounds and args.max_rounds and args.max_rounds < args.rounds:
        raise UsageError(f"--max-rounds {args.max_rounds} is below --rounds {args.rounds}; give at least as many")
    if args.false_alarms >= 50:
        raise UsageError(f"--false-alarms {args.false_alarms:g}: give a percentage below 50")
    check_outputs(args.json, args.markdown, args.bencher, force=args.force)
    refuse_used_folder(args.out, force=args.force)
    limits = {"threshold_pct": args.threshold, "false_alarm_pct": args.false_alarms}
    with _sides(args) as sides:
        folder = make_folder(args.out)
        trials = _Trials(sides, folder, steps=args.steps, limit_s=args.time_limit, turns=not args.restart)
        rounds = trials.rounds(args.rounds or _TURNS)
        first = next(rounds)
        looks = looks_of(
            args.rounds or min(_RESTARTS if trials.no_turns else _TURNS, args.max_rounds or _TURNS), args.max_rounds
        )
        _say(f"tests after {', '.join(map(str, looks))} rounds; output in {shown(folder)}")
        found = interleaved(chain([first], rounds), looks=looks, **limits)
        lines: Sequence[LineChange] = ()
        no_lines: str | None = None
        if found.verdict == REGRESSION and not args.no_lines and not found.stopped:
            lines, no_lines = _changed_lines(trials)
    document = {
        "schema": SCHEMA,
        **regression_document(found, **limits),
        "looks": list(looks),
        "base": sides[BASE].document(),
        "head": sides[HEAD].document(),
        "lines": [_line(one) for one in lines],
        "lines_reason": no_lines,
        "steps_per_trial": trials.steps,
        "no_turns_reason": trials.no_turns,
        "trials": trials.records,
    }
    write_json(str(folder / RESULT), document, force=args.force)
    write_json(args.json, document, force=args.force)
    if args.markdown:
        write_output(args.markdown, gate_markdown(document), force=args.force)
    write_json(args.bencher, bencher_metrics(document, name=args.name) if args.bencher else None, force=args.force)
    if "-" not in (args.json, args.markdown, args.bencher):
        for line in gate_lines(document):
            print_line(line)
    say_with_answer(f"stepscope gate: all trials are in {shown(folder / RESULT)}")
    if found.verdict == REGRESSION:
        return 1
    return 3 if found.stopped else 0


@dataclass(frozen=True)
class _Side:
    command: tuple[str, ...]
    #: None for the current folder
    folder: Path | None
    #: revision, folder or command, as given
    name: str

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "command": redacted(list(self.command))}


@contextmanager
def _sides(args: argparse.Namespace) -> Iterator[dict[str, _Side]]:
    """Yield base and head; revisions are checked out into temporary worktrees and removed at the end."""
    from stepscope.compare.regression import BASE, HEAD

    if not args.command:
        if not args.head:
            raise UsageError(
                "give the job's command after --, e.g. stepscope gate --base origin/main -- python train.py, or two "
                "commands with --base and --head"
            )
        yield {side: _Side(_words(side, text), None, text) for side, text in ((BASE, args.base), (HEAD, args.head))}
        return
    with tempfile.TemporaryDirectory(prefix="stepscope-gate-") as scratch:
        places: dict[str, Path | None] = {}
        added = []
        try:
            for side, word in ((BASE, args.base), (HEAD, args.head)):
                commit = _commit(word) if word else None
                if word and commit is None and not Path(word).is_dir():
                    raise UsageError(f"--{side} {word}: neither a revision of a git repository here nor a folder")
                places[side] = Path(word).absolute() if word else None
                if commit is not None:
                    place = Path(scratch, side)
                    added.append(place)
                    _git("worktree", "add", "--detach", "--force", str(place), commit)
                    places[side] = place / _git("rev-parse", "--show-prefix")
            command = tuple(_found_program(args.command))
            yield {
                side: _Side(command, place, str(getattr(args, side) or "current folder"))
                for side, place in places.items()
            }
        finally:
            for place in added:
                with suppress(InputError):
                    _git("worktree", "remove", "--force", str(place))


def _words(side: str, text: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--{side} {text!r}: {error}; write it as in a shell") from error
    if not words:
        raise UsageError(f"--{side}: the command is empty; e.g. --{side} 'python train.py'")
    return words


def _found_program(command: Sequence[str]) -> list[str]:
    """Return the command with its program by the full path if it is in the current folder: `.venv/bin/python`."""
    program = Path(command[0])
    local = len(program.parts) > 1 and not program.is_absolute() and program.exists()
    return [str(program.absolute()), *command[1:]] if local else list(command)


def _commit(revision: str) -> str | None:
    try:
        return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except InputError:
        return None


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise InputError(f"cannot run git: {error.strerror}; install it, or give two folders") from error
    if done.returncode:
        raise InputError(f"git {words[0]} failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def _say(line: str) -> None:
    if not is_quiet():
        print_stderr(f"stepscope gate: {line}")


class _Trials:
    """Runs trials of base and head: rounds of step times, and recordings."""

    def __init__(
        self, sides: Mapping[str, _Side], folder: Path, *, steps: int | None, limit_s: float | None, turns: bool
    ) -> None:
        self.records: list[dict[str, Any]] = []
        self.steps, self._given_steps, self._limit_s = steps, steps, limit_s
        #: why base and head do not run in turn within one start
        self.no_turns = None if turns else "--restart"
        self._sides, self._folder = sides, folder

    def rounds(self, per_start: int) -> "Iterator[Round]":
        """Yield rounds for ever; each is a turn of both jobs or, where they cannot run in turn, a trial of both."""
        start = 0
        while self.no_turns is None:
            try:
                yield from self._turns(start, per_start)
            except _NoTurns as error:
                self.no_turns = str(error)
                _say(f"every round starts the job anew: {error}")
            start += 1
        yield from self._restarts(start)

    def _turns(self, start: int, num: int) -> "Iterator[Round]":
        import numpy as np

        from stepscope.compare.regression import BASE, HEAD, Round
        from stepscope.record.launch.launch import sigterm_raises
        from stepscope.record.turns import Turns, TurnsError

        order = (BASE, HEAD) if start % 2 == 0 else (HEAD, BASE)
        records = {side: self._record(f"start {start + 1}", side) for side in order}

        def job(side: str, address: str) -> tuple[Path | None, str | None]:
            return self._run(records[side], NEVER, turn_address=address)

        try:
            with sigterm_raises(), Turns([partial(job, side) for side in order]) as turns:
                fitting = round(_TURN_MS * NS_PER_MS / max(turns.step_ns, 1))
                self.steps = self._given_steps or self.steps or min(_MAX_TURN, max(1, fitting))
                for _ in range(_WARM_TURNS + num):
                    for k in range(len(order)):
                        turns.run(k, self.steps)
        except TurnsError as error:
            raise _NoTurns(str(error)) from error
        found = {}
        for side, (folder, ended) in zip(order, turns.outcomes, strict=True):
            times = None if folder is None or ended else _step_times(folder)
            if times is None or times.shape[1] < self.steps * num:
                raise _NoTurns(f"{side}: {ended or 'some steps were not recorded'}")
            found[side] = times[:, -self.steps * num :]
            _note(records[side], found[side])
        for base, head in zip(*(np.split(found[side], num, axis=1) for side in (BASE, HEAD)), strict=True):
            yield Round(base, head, start)

    def _restarts(self, start: int) -> "Iterator[Round]":
        from stepscope.compare.regression import BASE, HEAD, Round

        for side in (BASE, HEAD):
            self._first(side)
        for number in count(start):
            times = {}
            for side in (BASE, HEAD) if number % 2 == 0 else (HEAD, BASE):
                assert self.steps is not None
                times[side] = self._trial_times(f"round {number + 1}", side, self.steps + WARMUP_STEPS)
            yield Round(times[BASE], times[HEAD], number)

    def _first(self, side: str) -> None:
        """Run a side once, untimed: it fills caches, and shows how long steps and trials take."""
        began_s = time.monotonic()
        step_ms = sorted(ms := self._trial_times("first run", side, _FIRST_STEPS)[0])[len(ms) // 2]
        self._limit_s = max(self._limit_s or 60.0, 5 * (time.monotonic() - began_s))
        self.steps = self._given_steps or min(300, max(20, round(_TIMED_MS / float(step_ms))))

    def recording(self, when: str, side: str) -> Path:
        """Return the folder of a profiled run."""
        steps = WAIT_STEPS + WARMUP_STEPS + _RECORDED_STEPS + 8  # and those that are watched after the window
        return self._trial(when, side, steps, active=_RECORDED_STEPS, light=False)

    def _trial_times(self, when: str, side: str, steps: int) -> "Floats":
        from stepscope.stats.robust import MIN_SAMPLES, slow_start

        times = _step_times(self._trial(when, side, steps))
        settled = times[:, slow_start(times[0]) :]
        if settled.shape[1] < MIN_SAMPLES:
            raise InputError(
                f"{side}: fewer than {MIN_SAMPLES} steps after the warm-up; the job has to take more steps"
            )
        _note(self.records[-1], settled)
        return settled

    def _trial(self, when: str, side: str, steps: int, **options: Any) -> Path:
        for _ in range(2):  # one failed start in hundreds does not fail the gate
            record = self._record(when, side)
            folder, ended = self._run(record, steps, **options)
            if folder is not None and ended is None:
                return folder
        log = shown(self._folder / record["log"])
        raise InputError(f"{side}: {ended or 'no step of it was recorded'}; its output is in {log}")

    def _record(self, when: str, side: str) -> dict[str, Any]:
        log = f"{len(self.records):03d}-{side}.log"
        self.records.append({"when": when, "side": side, "log": log, "failed": None, "step_ms": None})
        return self.records[-1]

    def _run(self, record: dict[str, Any], steps: int, **options: Any) -> tuple[Path | None, str | None]:
        one, log = self._sides[record["side"]], self._folder / record["log"]
        limit_s = self._limit_s or 1800.0
        folder, ended = run_trial(one.command, log, steps=steps, limit_s=limit_s, folder=one.folder, **options)
        record["failed"] = ended
        return folder, ended


class _NoTurns(Exception):
    pass


def _step_times(folder: Path) -> "Floats":
    """Return times and core waits of all steps in ms, over ranks."""
    import numpy as np

    from stepscope.analyze.steadiness import log_series, median_over_ranks
    from stepscope.run.light import load_light

    logs = load_light(folder).logs
    waits = [(log.step, np.nan_to_num(log.column("cpu.delay_ns")).astype(np.int64)) for log in logs]
    times, waited = log_series(logs), median_over_ranks(waits, source="core waits")
    if times is None or waited is None:
        return np.empty((2, 0))
    return np.array([times.dur_ns, waited.dur_ns[np.isin(waited.step, times.step)]]) / NS_PER_MS


def _note(record: dict[str, Any], times: "Floats") -> None:
    record["step_ms"] = [round(float(ms), 6) for ms in times[0]]
    _say(f"{record['when']}, {record['side']}: {sorted(times[0])[times.shape[1] // 2]:.2f} ms per step")


def _changed_lines(trials: _Trials) -> "tuple[Sequence[LineChange], str | None]":
    """Return the lines that got slower, and why there are none."""
    from stepscope.compare.document import line_changes
    from stepscope.compare.regression import BASE, HEAD

    lines: dict[str, list[Lines | None]] = {BASE: [], HEAD: []}
    try:
        for number in range(_RECORDINGS):
            for side in (BASE, HEAD) if number % 2 == 0 else (HEAD, BASE):
                lines[side].append(_lines_in(trials.recording(f"recording {number + 1}", side)))
        _say(f"{_RECORDINGS} recordings of each side compared line by line")
    except (StepscopeError, ImportError) as error:
        return (), f"no source lines: {error}"
    slower = [one for one in line_changes(lines[BASE], lines[HEAD]) if one.difference.change > 0]
    slower.sort(key=lambda one: (one.what not in ("appeared", "slower"), -one.difference.change))
    return slower[:_MAX_LINES], None if slower else "no source line got slower in the recordings"


def _lines_in(folder: Path) -> "Lines | None":
    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled import load_run
    from stepscope.compare.sides import code_lines

    return code_lines(account_of(load_run([str(folder)])))


def _line(one: "LineChange") -> dict[str, Any]:
    row, found = one.row, one.difference
    return {
        "file": row.file,
        "line": row.line,
        "function": row.function,
        "module": row.module,
        "source": row.source,
        "base_ms": found.a,
        "head_ms": found.b,
        "what": one.what or "slower, within chance",
    }
