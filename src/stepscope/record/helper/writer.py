"""The helper process: lines and messages come in on a pipe, the run folder comes out.

It needs the standard library only and never talks to torch. One runs beside every rank, at low priority. When its
pipe ends without a `close` the training process was killed: it then finishes the folder with what it has, so that
even a run that died has a step log, its traces and a `run.json`. Where storage fails (a full disk) it goes on: what
was not written is tried again, and what never was is counted and told in `run.json`.

Messages, one JSON object per line after the letter `m` (lines after `s` go to the step log as they are):

    {"do": "claim", "out", "run_id", "launch_id"}      choose a folder and write there -> {"folder"} or {"error"}
    {"do": "run", "folder"}                            write where rank 0 said
    {"do": "trace", "plain", "name", "about": {...}}   verify, compress and move one exported trace
    {"do": "file", "plain", "name"}                    move one finished file as it is
    {"do": "flight", "plain", "name", "process_groups"}  the flight recorder's dump, to be written as JSON lines
    {"do": "facts", ...}                               what run.json shall know of this rank
    {"do": "where", "frames", "region", "collective"}  where the training thread is; asked for
    {"do": "close"}                                    training is over

It says {"storage": reason} where a write fails that the training process waits for.

Beside its writing it looks for windows that are asked for, and for a rank that takes no steps (`live`).
"""

import contextlib
import errno
import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.contract.run_folder import RUN_JSON, facts_file, json_object_in, steps_file
from stepscope.errors import StepscopeError
from stepscope.record.helper.claim import claim_folder
from stepscope.record.helper.description import rank_facts, run_description
from stepscope.record.helper.growing_log import GrowingLog
from stepscope.record.helper.move_file import move_file
from stepscope.record.helper.retries import Retries, may_pass
from stepscope.record.helper.scratch import hold_scratch, remove_scratch
from stepscope.record.live.live import Live
from stepscope.record.progress_notes import DONE, ERRNO, HELPER, leave_word
from stepscope.record.steps.statistics import StepStatistics
from stepscope.record.window.trace_file import place_whole, sweep

_READ_BYTES = 1 << 16
_NAP_S = 0.2  # lines are gathered, so that the helper wakes a few times a second at most
_NAP_PER_RANK_S = 0.002  # thousands of ranks on shared storage are asked for less often
_WATCH_S = 2.0
_NICE = 10
_MAX_EARLY_LINES = 100_000
_CLAIM_S = 20.0  # for a folder on storage that fails; the training process asks for 30
_LAST_TRIES_S = 60.0  # for all that is left when training is over


def main() -> None:
    """Run the helper: settings as JSON in the first argument, lines on standard input."""
    settings = json.loads(sys.argv[1])
    with contextlib.suppress(OSError, AttributeError):
        os.nice(_NICE)
    writer = Writer(settings)

    def end() -> None:
        writer.remove_scratch()
        _leave_word(DONE)

    try:
        writer.read_to_the_end(sys.stdin.fileno())
        _end_after(settings["write_timeout_s"], end)
        writer.finish()
    finally:
        end()


class Writer:
    """What one rank leaves behind, and how far it has got."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.parent = os.getppid()
        self.folder: Path | None = None
        self.has_folder = threading.Event()
        self.rank: int = settings["rank"]
        self.world_size: int = settings["world_size"]
        self.closed = False
        self.ending = False
        self.early: list[bytes] = []
        self.log: GrowingLog | None = None
        self.retries = Retries(settings["write_timeout_s"], on_failure=self._note_failure)
        self.facts: dict[str, Any] = {}
        self.files: list[dict[str, Any]] = []
        self.steps = StepStatistics()
        self.live = Live(
            {**settings.get("live", {}), "pid": self.parent}, rank=self.rank, world_size=self.world_size, tell=_reply
        )
        self.jobs: queue.Queue[dict[str, Any] | None] = queue.Queue()
        hold_scratch(Path(settings["scratch"]))  # it outlives the process that made it
        self.packer = threading.Thread(target=self._pack_all, daemon=True)
        self.packer.start()

    def read_to_the_end(self, pipe: int) -> None:
        """Take in lines until the pipe ends or the training process is gone."""
        rest = b""
        while True:
            self._watch(self.live.look)
            if not select.select([pipe], [], [], min(_WATCH_S, self.live.look_s))[0]:
                if os.getppid() != self.parent:  # it was killed, and a child of its own still holds the pipe
                    return
                self._flush_log()
                continue
            data = os.read(pipe, _READ_BYTES)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.take(line)
            self._flush_log()
            if not self.closed and len(data) < _READ_BYTES:
                time.sleep(_NAP_S)

    def take(self, line: bytes) -> None:
        """Act on one line; one that cannot be understood is counted, not fatal."""
        try:
            if line[:1] == b"s":
                self._step(line[1:])
            elif line[:1] == b"m":
                self._message(json.loads(line[1:]))
        except (ValueError, KeyError, TypeError, OSError) as e:
            self.facts.setdefault("warnings", []).append(f"writer: {type(e).__name__}: {e}")

    def finish(self) -> None:
        """Complete this rank's files; on rank 0 wait for the other ranks, within limits, and write run.json."""
        self.ending = True
        self._watch(partial(self.live.ends, closed=self.closed))
        self.retries.end_within(_LAST_TRIES_S)
        self.has_folder.set()  # or will never have one
        self.jobs.put(None)
        self.packer.join()
        if self.folder is None:
            return
        self._close_log()
        with contextlib.suppress(OSError):  # nobody is left to hear of it; run.json then lacks this rank
            self.retries.until_done(partial(self._write_facts, over=True))
        _reply({"own_files": "done"})
        if self.rank == 0:
            found = self._facts_of_all(over=True)
            self.retries.end_within(_LAST_TRIES_S)
            self.retries.until_done(partial(self._write_run_json, found, over=True))

    def _note_failure(self, error: OSError) -> None:
        if error.errno != errno.ENOENT:  # else a file of the training process may be missing, which `files` tells
            _leave_word(f"{ERRNO}{error.errno}")
        if self.ending or self.folder is None:
            _reply({"storage": error.strerror})

    def _watch(self, act: Callable[[], None]) -> None:
        """Do what is beside the writing; where it fails it is noted, and the writing goes on."""
        try:
            act()
        except Exception as e:  # noqa: BLE001 - the run comes first
            noted = self.facts.setdefault("warnings", [])
            if (line := f"live: {type(e).__name__}: {e}") not in noted:
                noted.append(line)

    def remove_scratch(self) -> None:
        """Remove the folder in which the training process exported its traces."""
        remove_scratch(Path(self.settings["scratch"]))

    def _message(self, message: dict[str, Any]) -> None:
        do = message.pop("do")
        if do == "claim":
            self._claim(message)
        elif do == "run":
            trouble = self._open_folder(Path(message["folder"]))
            if trouble is not None:
                _reply({"error": trouble})
        elif do in ("trace", "file", "flight"):
            self.jobs.put({"do": do, **message})
        elif do == "facts":
            self.facts.update(message)
            self.live.facts(message)
            if message.pop("window_complete", False):
                self.jobs.put({"do": "report"})
        elif do == "where":
            self.live.where(message)
        elif do == "close":
            self.closed = True

    def _claim(self, message: dict[str, Any]) -> None:
        try:
            folder = self.retries.until_done(partial(_claim_folder, message), within_s=_CLAIM_S)
        except StepscopeError as e:
            _reply({"error": str(e)})
            return
        except OSError as e:
            _reply({"error": f"{message['out']}: {e.strerror} for {_CLAIM_S:g} s; make room, or give --out"})
            return
        trouble = self._open_folder(folder)
        _reply({"folder": str(folder)} if trouble is None else {"error": trouble})

    def _open_folder(self, folder: Path) -> str | None:
        """Start writing into `folder`; return why that is not possible, None where it is."""
        try:
            self.log = self.retries.until_done(partial(self._open, folder), within_s=_CLAIM_S)
        except FileExistsError:
            return f"{folder}: another process has written as rank {self.rank} of this run; this one does not"
        except OSError as e:
            return f"{folder}: cannot write there: {e.strerror}"
        self.folder = folder
        self.has_folder.set()
        self.live.opens(folder)
        for line in self.early:
            self.log.add(line)
        self.early = []
        return None

    def _open(self, folder: Path) -> GrowingLog:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        return GrowingLog(folder / steps_file(self.rank))

    def _step(self, line: bytes) -> None:
        if self.log is not None:
            self.log.add(line)
        elif len(self.early) < _MAX_EARLY_LINES:
            self.early.append(line)
        found = json.loads(line)
        self.steps.add(found)
        self.live.step(found)

    def _flush_log(self) -> None:
        if self.log is not None:
            try:
                self.log.flush()
            except OSError as e:
                self.retries.note_failure(e)  # the lines wait for the next time

    def _close_log(self) -> None:
        if self.log is None or self.folder is None:
            return
        if not (self.folder / steps_file(self.rank)).exists():
            _leave_word(f"{ERRNO}{errno.ENOENT}")
        with contextlib.suppress(OSError):  # counted
            self.retries.until_done(self.log.flush)
        with contextlib.suppress(OSError):
            self.retries.lost_lines = self.log.close()

    def _pack_all(self) -> None:
        self.has_folder.wait()
        while (job := self.jobs.get()) is not None:
            if self.folder is None:
                continue
            if job["do"] == "report":
                self._report()
            else:
                self.files.append(self._pack_file(job, self.folder))

    def _report(self) -> None:
        """Write down what is known by now; where that fails it is written at the end."""
        try:
            self._write_facts(over=False)
            if self.rank == 0:
                self._write_run_json(self._facts_of_all(over=False), over=False)
        except OSError as e:
            self.retries.note_failure(e)

    def _pack_file(self, job: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return what became of one file: its name and size, or the reason why it is missing."""
        plain = Path(job["plain"])
        about = {"name": job["name"], **job.get("about", {})}
        try:
            return {**about, **self.retries.until_done(partial(move_file, job, folder, self.rank))}
        except (OSError, ValueError) as e:
            self.retries.lost_files.append(job["name"])
            return {**about, "status": "failed", "reason": f"{job['name']}: {getattr(e, 'strerror', None) or e}"}
        finally:
            with contextlib.suppress(OSError):
                plain.unlink()

    def _write_facts(self, *, over: bool) -> None:
        assert self.folder is not None
        ended = ("closed" if self.closed else "killed") if over else "running"
        text = rank_facts(
            self.facts,
            rank=self.rank,
            world_size=self.world_size,
            files=self.files,
            steps=self.steps,
            ended=ended,
            writing=self.retries.summary(),
        )
        place_whole(json.dumps(text).encode() + b"\n", self.folder / facts_file(self.rank))

    def _write_run_json(self, found: list[dict[str, Any]], *, over: bool) -> None:
        assert self.folder is not None
        text = run_description(found, world_size=self.world_size, finished=over)
        place_whole(json.dumps(text, indent=1).encode() + b"\n", self.folder / RUN_JSON)

    def _facts_of_all(self, *, over: bool) -> list[dict[str, Any]]:
        """Return the facts of every rank that has some, once all are done or the wait for them is over."""
        assert self.folder is not None
        deadline = time.monotonic() + self.settings["other_ranks_wait_s"]
        done: dict[int, dict[str, Any]] = {}
        while True:
            last_look = time.monotonic() > deadline or (self.ending and not over)
            there = {path.name for path in self.folder.iterdir()}
            for rank in range(self.world_size):
                name = facts_file(rank)
                facts = json_object_in(self.folder / name) if rank not in done and name in there else {}
                if facts and (last_look or facts["ended"] != "running" or (not over and self._is_as_far(facts))):
                    done[rank] = facts
            if last_look or len(done) == self.world_size:
                return [done[rank] for rank in sorted(done)]
            time.sleep(_NAP_S + (self.world_size - len(done)) * _NAP_PER_RANK_S)

    def _is_as_far(self, facts: dict[str, Any]) -> bool:
        """Return whether a rank that runs on has written down as many windows as this one, or takes no part in them."""
        return not facts.get("windows") or len(facts["windows"]) >= len(self.facts.get("windows") or ())


def _leave_word(word: str) -> None:
    leave_word(f"{HELPER}{os.getpid()}.{word}")


def _reply(message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def _claim_folder(message: dict[str, Any]) -> Path:
    try:
        return claim_folder(message["out"], run_id=message["run_id"], launch_id=message.get("launch_id"))
    except StepscopeError as e:
        if isinstance(e.__cause__, OSError) and may_pass(e.__cause__):
            raise e.__cause__ from None
        raise


def _end_after(timeout_s: float, last: Any) -> None:
    """Give up on storage that hangs: leave after `timeout_s`, however far the writing has got."""

    def leave() -> None:
        _leave_word(f"{ERRNO}{errno.ETIMEDOUT}")
        last()
        os._exit(1)

    timer = threading.Timer(timeout_s, leave)
    timer.daemon = True
    timer.start()
