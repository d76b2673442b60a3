"""Base and head of `stepscope gate` in turn: their trials, the verdict, and the lines that got slower."""

import argparse
import shlex
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stepscope.cli.outputs import (
    check_outputs,
    make_folder,
    refuse_used_folder,
    say_with_answer,
    show,
    write_json,
    write_output,
)
from stepscope.cli.record import shown
from stepscope.contract.redaction import redacted
from stepscope.contract.run_folder import SCHEMA
from stepscope.errors import InputError, StepscopeError, UsageError
from stepscope.lab.cli.gate_arguments import RESTARTS, TURNS
from stepscope.lab.cli.trials import JobTrials
from stepscope.lab.experiment import MIN_ROUNDS, Rounds, Trial, run_rounds, trial_in
from stepscope.lab.regression import (
    BASE,
    HEAD,
    REGRESSION,
    UNDECIDED,
    bencher_metrics,
    judge,
    looks_of,
)
from stepscope.lab.report.trials import gate_sheet
from stepscope.record.config import WAIT_STEPS, WARMUP_STEPS
from stepscope.record.window.schedule import NEVER
from stepscope.records import dataclass
from stepscope.report.sheet_text import sheet_markdown
from stepscope.side_file import RefusedFile, read_side_text
from stepscope.stats.change import Floats
from stepscope.stats.robust import MIN_SAMPLES, median, slow_start
from stepscope.units import NS_PER_MS

if TYPE_CHECKING:
    from stepscope.compare.findings import Lines

RESULT = "gate.json"
# short enough for both to see the same load of the machine
_TURN_MS = 100
_MAX_TURN = 300
# a round of the loader's workers, of which one step waits for all of it; unless that takes too long
_LEAST_TURN = 8
_LONG_TURN_MS = 1_000
# after a start, untimed
_WARM_TURNS = 2
_FIRST_STEPS = 25
_NO_ROOM = "both versions do not fit into memory at once"
# of each side, to name the lines
_RECORDINGS = 3
_RECORDED_STEPS = 10
_MAX_LINES = 5


def run(args: argparse.Namespace) -> int:
    """Return 0, 1 on a regression, 3 if it was stopped before it was decided."""
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
        trials = _Trials(sides, args, folder)
        trials.prepare()
        looks = looks_of(
            args.rounds or min(RESTARTS if trials.no_turns else TURNS, args.max_rounds or TURNS), args.max_rounds
        )
        trials.say(f"tests after {', '.join(map(str, looks))} rounds; output in {shown(folder)}")

        def judged(rounds: Rounds) -> dict[str, Any]:
            return judge(rounds, looks=len(looks), **limits)

        rounds = run_rounds(
            (BASE, HEAD),
            trials.round,
            looks=looks,
            undecided=lambda rounds: (HEAD,) if judged(rounds)["verdict"] == UNDECIDED else (),
        )
        found = judged(rounds)
        lines: Sequence[dict[str, Any]] = ()
        no_lines: str | None = None
        if found["verdict"] == REGRESSION and not args.no_lines and not found["stopped"]:
            lines, no_lines = _changed_lines(trials)
    document = {
        "schema": SCHEMA,
        **found,
        "looks": list(looks),
        "base": sides[BASE].document(),
        "head": sides[HEAD].document(),
        "lines": lines,
        "lines_reason": no_lines,
        "steps_per_trial": trials.steps,
        "no_turns_reason": trials.no_turns,
        "trials": [{"side": one["name"], **{k: v for k, v in one.items() if k != "name"}} for one in trials.ended],
    }
    write_json(str(folder / RESULT), document, force=args.force)
    sheet = gate_sheet(document)
    if args.markdown:
        write_output(args.markdown, sheet_markdown(sheet), force=args.force)
    write_json(args.bencher, bencher_metrics(document, name=args.name) if args.bencher else None, force=args.force)
    if "-" not in (args.markdown, args.bencher):
        show(args, document, lambda: sheet)
    else:
        write_json(args.json, document, force=args.force)
    say_with_answer(f"stepscope gate: all trials are in {shown(folder / RESULT)}")
    if found["verdict"] == REGRESSION:
        return 1
    return 3 if found["stopped"] else 0


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


class _Trials(JobTrials):
    """Runs trials of base and head: rounds of step times, and recordings."""

    def __init__(self, sides: Mapping[str, _Side], args: argparse.Namespace, folder: Path) -> None:
        super().__init__("gate", folder, steps=args.steps, limit_s=args.time_limit)
        #: why base and head do not run in turn within one start
        self.no_turns = "--restart" if args.restart else None
        self._sides, self._per_start = sides, args.rounds or TURNS
        self._ready: deque[dict[str, Trial]] = deque()
        self._starts = 0
        self._first_runs = False

    def prepare(self) -> None:
        """Run the first start: its turns, or where they do not work a first trial of both sides."""
        if not self._ready and self.no_turns is None:
            try:
                self._ready.extend(self._turns(self._per_start))
            except _NoTurns as error:
                self.no_turns = str(error)
                self.say(f"every round starts the job anew: {error}")
            self._starts += 1
        if not self._ready and not self._first_runs:
            for side in (BASE, HEAD):  # untimed: it fills caches, and shows how long steps and trials take
                trial = self._trial("first run", side, _FIRST_STEPS)
                self.size(median(trial.steps[0]), self.records[-1]["wall_s"])
            self._first_runs = True

    def round(self, number: int, order: Sequence[str]) -> dict[str, Trial]:
        """Return a round: a turn of both jobs or, where they cannot run in turn, a trial of both."""
        self.prepare()
        if self._ready:
            return self._ready.popleft()
        return {side: self._trial(f"round {number + 1}", side, (self.steps or 0) + WARMUP_STEPS) for side in order}

    def _turns(self, num: int) -> Iterator[dict[str, Trial]]:
        from stepscope.record.launch.launch import sigterm_raises
        from stepscope.record.turns import Turns, TurnsError

        order = (BASE, HEAD) if self._starts % 2 == 0 else (HEAD, BASE)
        records = {side: self._record(f"start {self._starts + 1}", side) for side in order}

        def job(side: str, address: str) -> tuple[Path | None, str | None]:
            return self._start(records[side], NEVER, turn_address=address)

        turns = Turns([partial(job, side) for side in order])
        try:
            with sigterm_raises(), turns:
                step_ms = max(turns.step_ns, 1) / NS_PER_MS
                fitting = max(_TURN_MS / step_ms, min(_LEAST_TURN, _LONG_TURN_MS / step_ms))
                self.steps = self._given_steps or self.steps or min(_MAX_TURN, max(1, round(fitting)))
                for _ in range(_WARM_TURNS + num):
                    for k in range(len(order)):
                        turns.run(k, self.steps)
        except TurnsError as error:
            short = any(_ran_out_of_memory(self.folder / record["log"]) for record in records.values())
            raise _NoTurns(_NO_ROOM if short else str(error)) from error
        rounds: dict[str, list[Floats]] = {}
        for side, outcome in zip(order, turns.outcomes, strict=True):
            folder, ended = outcome or (None, None)
            trial = trial_in(folder, ended=ended)
            rounds[side] = _by_turn(trial.steps, self.steps, num) if trial.failed is None else []
            if not rounds[side]:
                raise _NoTurns(f"{side}: {trial.failed or 'some steps were not recorded'}")
            self.note(records[side], Trial(np.concatenate(rounds[side], axis=1)))
        for times in zip(*(rounds[side] for side in (BASE, HEAD)), strict=True):
            yield {side: Trial(one, start=self._starts) for side, one in zip((BASE, HEAD), times, strict=True)}

    def recording(self, when: str, side: str) -> Path:
        """Return the folder of a profiled run."""
        steps = WAIT_STEPS + WARMUP_STEPS + _RECORDED_STEPS + 8  # and those that are watched after the window
        return self._folder_of(when, side, steps, active=_RECORDED_STEPS, light=False)

    def _trial(self, when: str, side: str, steps: int) -> Trial:
        trial = trial_in(self._folder_of(when, side, steps))
        settled = trial.steps[:, slow_start(trial.steps[0]) :]
        if settled.shape[1] < MIN_SAMPLES:
            raise InputError(
                f"{side}: fewer than {MIN_SAMPLES} steps after the warm-up; the job has to take more steps"
            )
        return self.note(self.records[-1], Trial(settled))

    def _folder_of(self, when: str, side: str, steps: int, **options: Any) -> Path:
        for _ in range(2):  # one failed start in hundreds does not fail the gate
            record = self._record(when, side)
            folder, ended = self._start(record, steps, **options)
            if folder is not None and ended is None:
                return folder
        raise self.failure(record | {"failed": ended or "no step of it was recorded"})

    def _record(self, when: str, side: str) -> dict[str, Any]:
        return self.record(when, side, f"{len(self.records):03d}-{side}.log")

    def _start(self, record: dict[str, Any], steps: int, **options: Any) -> tuple[Path | None, str | None]:
        one = self._sides[record["name"]]
        return self.start(record, one.command, steps, folder=one.folder, **options)


class _NoTurns(Exception):
    pass


def _by_turn(steps: Floats, per_turn: int, num: int) -> list[Floats]:
    """Return the steps of each of the last turns, empty where one has none."""
    turn = num - 1 - (int(steps[2].max()) - steps[2]) // per_turn
    found = [steps[:, turn == k] for k in range(num)]
    return found if all(one.size for one in found) else []


def _ran_out_of_memory(log: Path) -> bool:
    with suppress(OSError, RefusedFile):
        return "out of memory" in read_side_text(log)[-100_000:].lower()
    return False


def _changed_lines(trials: _Trials) -> tuple[Sequence[dict[str, Any]], str | None]:
    """Return the lines that got slower, and why there are none."""
    from stepscope.compare.document import line_changes

    lines: dict[str, list[Lines | None]] = {BASE: [], HEAD: []}
    try:
        for number in range(_RECORDINGS):
            for side in (BASE, HEAD) if number % 2 == 0 else (HEAD, BASE):
                lines[side].append(_lines_in(trials.recording(f"recording {number + 1}", side)))
        trials.say(f"{_RECORDINGS} recordings of each side compared line by line")
    except (StepscopeError, ImportError) as error:
        return (), f"no source lines: {error}"
    slower = [one for one in line_changes(lines[BASE], lines[HEAD]) if one["change"] > 0]
    slower.sort(key=lambda one: (one["what"] not in ("appeared", "slower"), -one["change"]))
    names = ("file", "line", "function", "module", "source")
    shown = [
        {
            **{name: one[name] for name in names},
            "base_ms": one["a"],
            "head_ms": one["b"],
            "what": one["what"] or "slower, within chance",
        }
        for one in slower[:_MAX_LINES]
    ]
    return shown, None if shown else "no source line got slower in the recordings"


def _lines_in(folder: Path) -> "Lines | None":
    from stepscope.analyze.account import account_of
    from stepscope.analyze.sampled import load_run
    from stepscope.compare.findings import code_lines

    return code_lines(account_of(load_run([str(folder)])))
