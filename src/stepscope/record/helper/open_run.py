"""A run that has begun: its helper process, the folder agreed on with the other ranks, its clock probes.

Everything slow happens on one background thread or in the helper; the training thread only puts messages.
"""

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.contract.live import WindowPlan, plan_of
from stepscope.record.config import Place, RecordConfig
from stepscope.record.failsafe import CLOSED, FOLDERS, HELPER, HELPER_VARIABLE, SEEN_VARIABLE, explain, leave_word, say
from stepscope.record.helper import side_channel as clock_probe
from stepscope.record.helper.scratch import make_scratch
from stepscope.record.helper.side_channel import ChannelClosed, SideChannel, boot_id, open_side_channel
from stepscope.record.window.schedule import free_step


def live_settings(config: RecordConfig, place: Place, *, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of `Live`; secrets for a collector stay in the environment."""
    return {
        "free_step": free_step(config),
        "first_number": 0 if config.light else config.repeat,
        "why_no_window": None
        if config.tool == "torch"
        else f"the job runs under {config.outside_tool or 'another tool'}, which records the window; record without it",
        "profiled_ranks": None if config.ranks is None else list(config.ranks),
        "pause_s": config.asked_pause_s,
        "on_alarm": config.on_alarm,
        "alarm_pause_s": config.alarm_pause_s,
        "max_alarm_windows": config.max_alarm_windows,
        "watch_stalls": config.watch_stalls,
        "metrics": config.metrics,
        "local_rank": place.local_rank or 0,
        "attempt": environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
    }


# The way out of the training process: a pipe to a helper process that does all writing.
#
# A line put here costs one `write` to a pipe, never waits, and outlives the process: when training is killed the
# helper still has every line and finishes the run folder. Where the helper cannot keep up (hanging storage) lines are
# dropped and counted; training never notices.
#
#     job --(lines)--> pipe --> helper process --> run folder

STEP = b"s"


class Outbox:
    """The job's end of the pipe. All methods return at once."""

    def __init__(self, *, on_reply: Callable[[dict[str, Any]], None], settings: dict[str, Any]) -> None:
        self.dropped = 0
        self.helper_gone = False  # while there was still something to write
        self.failing: str | None = None  # why a write fails that this process waits for
        self._held = b""
        self._lock = threading.Lock()
        self._own_files_done = threading.Event()
        self._helper = _start_helper(settings)
        assert self._helper.stdin is not None
        self._pipe = self._helper.stdin.fileno()
        os.set_blocking(self._pipe, False)
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            fcntl.fcntl(self._pipe, 1031, 1 << 20)  # F_SETPIPE_SZ, Linux
        threading.Thread(target=self._read_replies, args=(on_reply,), name="stepscope", daemon=True).start()

    @property
    def helper_pid(self) -> int:
        return self._helper.pid

    def put_step(self, *lines: str) -> None:
        self._put("".join([f"{STEP.decode()}{line}\n" for line in lines]).encode())

    def put(self, message: dict[str, Any]) -> None:
        """Send a message: `run`, `trace`, `file`, `facts`, `where` or `close`."""
        self._put(b"m" + json.dumps(message, default=str).encode() + b"\n")

    def finish(self, *, own_wait_s: float, grace_s: float) -> bool:
        """Close the pipe and return whether the helper was done in time; otherwise it goes on alone.

        It has `own_wait_s` for this rank's files, and then `grace_s` for what depends on other ranks; but on storage
        that fails it has no time at all.
        """
        os.set_blocking(self._pipe, True)
        threading.Thread(target=self._close_pipe, name="stepscope", daemon=True).start()
        until = time.monotonic() + own_wait_s
        while not self._own_files_done.wait(0.05) and self.failing is None and time.monotonic() < until:
            pass
        try:
            self._helper.wait(timeout=grace_s if self.failing is None else 0)
        except subprocess.TimeoutExpired:
            self._helper.returncode = 0  # it continues alone on purpose: no warning about it at exit
            return False
        return True

    def forget(self) -> None:
        """Let go of the pipe in a forked child, so that the helper sees the end of its real parent."""
        self._let_go()
        self._pipe = -1  # its number may become that of another file
        self._helper.returncode = 0

    def _put(self, data: bytes) -> None:
        with self._lock:
            if self._pipe < 0:  # closed, and a thread of ours answers late
                return
            if self._held:
                data = self._held + data
            try:
                sent = os.write(self._pipe, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.helper_gone = True
                self.dropped += 1
                self._held = b""
                return
            held = data[sent:]
            while len(held) > 1 << 20:
                held = held[: held[:-1].rfind(b"\n") + 1]
                self.dropped += 1
            self._held = held

    def _close_pipe(self) -> None:
        with self._lock:
            pipe, self._pipe = self._pipe, -1  # its number may become that of another file
        with contextlib.suppress(OSError):
            if self._held:
                os.write(pipe, self._held)
        self._let_go()

    def _let_go(self) -> None:
        with contextlib.suppress(OSError):
            self._helper.stdin.close()  # type: ignore[union-attr]

    def _read_replies(self, on_reply: Callable[[dict[str, Any]], None]) -> None:
        assert self._helper.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._helper.stdout:
                reply = json.loads(line)
                if "own_files" in reply:
                    self._own_files_done.set()
                    self.helper_gone = False  # it has all that matters
                elif "storage" in reply:
                    self.failing = reply["storage"]
                else:
                    on_reply(reply)
        self._own_files_done.set()  # the helper has exited
        code = self._exit_code()
        if code:
            on_reply({"error": f"the process that writes the run ended with code {code} ({sys.executable})"})

    def _exit_code(self) -> int | None:
        try:
            return self._helper.wait(timeout=5.0)  # its answers have ended
        except subprocess.TimeoutExpired:
            return None


def _start_helper(settings: dict[str, Any]) -> "subprocess.Popen[bytes]":
    root = str(Path(__file__).resolve().parents[3])
    # imports make many objects and little garbage
    program = (
        "import gc, sys; gc.disable(); "
        f"sys.path.insert(0, {root!r}); from stepscope.record.helper.writer import main; gc.enable(); main()"
    )
    # without what starts other tools or us inside the helper
    environment = {
        k: v
        for k, v in os.environ.items()
        if k not in ("STEPSCOPE_RECORD", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT")
    }
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # An orphan that holds the job's stderr would block its reader.
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env={
            **environment,
            HELPER_VARIABLE: json.dumps(settings),
        },  # unlike a command line, for no other user to see
        start_new_session=True,
    )


# One folder for all ranks, agreed in the background: rank 0 chooses it, the others receive it over the side channel.
#
# rank 0   helper claims a folder --> "folder" in the store
# others   wait for "folder"; without a store, claim it by an id that all ranks of the job can work out alone

# Requests a folder from the helper by run id; returns its reply, `{"folder"}` or `{"error"}`.
Claim = Callable[[str], dict[str, Any]]


def agree_on_folder(
    config: RecordConfig, place: Place, *, channel: SideChannel | None, claim: Claim, started_ns: int, number: int = 0
) -> dict[str, Any]:
    """Return `{"folder", "run_id", "boot_id"}` of this run (boot id: rank 0's), or `{"error"}`.

    `number` counts the runs of this process: a second one must not take the first one's answer.
    """
    key = f"folder{number or ''}"
    if place.world_size == 1:
        return _claim_folder(claim, str(uuid.uuid4()))
    if channel is None:
        return _claim_folder(claim, id_without_store(config, os.environ))
    if place.rank == 0:
        answer = _claim_folder(claim, str(uuid.uuid4()))
        channel.put(key, json.dumps({**answer, "started_ns": started_ns}))
        return answer
    told = _wait_for_answer(channel, key, config.other_ranks_wait_s, started_ns=started_ns)
    return told if told is not None else _claim_folder(claim, id_without_store(config, os.environ))


def id_without_store(config: RecordConfig, environ: Mapping[str, str]) -> str:
    """Return an id that is the same on all ranks of this job and another one in the next job."""
    restart = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if "SLURM_JOB_ID" in environ:
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}-{restart}"
    return f"{config.run_id or boot_id()}-{os.getppid()}-{restart}"


def _claim_folder(claim: Claim, run_id: str) -> dict[str, Any]:
    return {"run_id": run_id, "boot_id": boot_id(), **claim(run_id)}


def _wait_for_answer(channel: SideChannel, key: str, timeout_s: float, *, started_ns: int) -> dict[str, Any] | None:
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        text = channel.wait_for(key, left_s)
        if text is None:
            return None
        answer: dict[str, Any] = json.loads(text)
        if answer.pop("started_ns") > started_ns - 60e9:  # else from before an elastic restart
            return answer
        time.sleep(1.0)
    return None


_CLAIM_S = 30.0
_OPEN_RUN_LOOK_S = 0.1
# runs of this process; all ranks open them in the same order
_opened = itertools.count()


class OpenRun:
    """This rank's connection to its helper: messages and replies."""

    def __init__(
        self,
        config: RecordConfig,
        place: Place,
        *,
        on_asked: Callable[[WindowPlan], None] = lambda _: None,
        where: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        self.config = config
        self.place = place
        self.scratch = make_scratch(config.scratch)
        self.folder: Path | None = None
        self.failed = False  # there will be no folder: nothing of this run can be written
        self.settled = threading.Event()  # the folder is known, or known not to come
        self._started_ns = time.time_ns()
        self._number = next(_opened)
        self._on_asked = on_asked
        self._where = where
        self._replies: queue.Queue[dict[str, Any]] = queue.Queue()
        self._probes: queue.Queue[str | None] = queue.Queue()
        self._claimed = False
        self._of_launch = {
            "out": str(config.out),
            "launch_id": config.run_id,
            "attempt": os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        }
        self._channel: SideChannel | None = None
        self._clocks: list[dict[str, Any]] = []
        self.outbox = Outbox(
            on_reply=self._hear,
            settings={
                "rank": place.rank,
                "world_size": place.world_size,
                "scratch": str(self.scratch),
                "other_ranks_wait_s": config.other_ranks_wait_s,
                "write_timeout_s": config.write_timeout_s,
                "telemetry": config.telemetry,
                "live": live_settings(config, place, environ=os.environ),
            },
        )
        self.outbox.put({"do": "launch", **self._of_launch})  # not in its environment, by which a launch is ended
        leave_word(f"{HELPER}{self.outbox.helper_pid}", str(place.rank))
        self._thread = threading.Thread(target=self._in_background, name="stepscope", daemon=True)
        self._thread.start()

    def probe_clock(self, when: str) -> None:
        """Compare clocks with rank 0 in the background, where ranks are on several hosts."""
        self._probes.put(when)

    def finish(self) -> None:
        """Hand everything over to the helper and wait for it, within the limits of the settings."""
        self.wait_for_folder(give_up=True)
        self._probes.put(None)
        if self._channel is not None:
            self._channel.close()
        self.outbox.put({"do": "close"})
        self.outbox.finish(own_wait_s=self.config.close_wait_s, grace_s=self.config.others_grace_s)
        if self.outbox.helper_gone:
            say(f"rank {self.place.rank}: the helper process that writes the run was killed, so the run is cut short")
        elif self.outbox.failing and not self.failed and SEEN_VARIABLE not in os.environ:  # else the launcher does
            say(f"the run is incomplete: {self.outbox.failing}; a helper process keeps trying for a minute")
        leave_word(f"{HELPER}{self.outbox.helper_pid}.{CLOSED}")

    def wait_for_folder(self, *, give_up: bool = False) -> None:
        """Wait until the folder is known, but not for storage that fails; `give_up` asks for no folder then."""
        until = time.monotonic() + self.config.close_wait_s
        while not self.settled.wait(_OPEN_RUN_LOOK_S) and time.monotonic() < until:
            if self.outbox.failing and not give_up:
                return
            if self.outbox.failing and self._replies.empty():
                self._replies.put({"error": f"{self.config.out}: {self.outbox.failing}; make room, or give --out"})

    def forget(self) -> None:
        self.outbox.forget()

    def _hear(self, message: dict[str, Any]) -> None:
        if "window" in message:
            plan = plan_of(message["window"])
            if plan is not None:
                self._on_asked(plan)
        elif "where" in message:
            try:
                answer = self._where()
            except Exception as e:  # noqa: BLE001 - the next question may come
                answer = {"silent": explain(e)}
            self.outbox.put({"do": "where", **answer})
        else:
            self._replies.put(message)

    def _in_background(self) -> None:
        try:
            channel = self._channel = open_side_channel() if self.place.world_size > 1 else None
            answer = self._agree(channel)
            if answer is not None and channel is not None:
                self._probe_when_asked(channel, answer.get("boot_id"))
        except ChannelClosed:
            return
        except Exception as e:  # noqa: BLE001 - training comes first
            say(f"the run's folder or clocks could not be settled: {explain(e)}")
        finally:
            self.settled.set()

    def _agree(self, channel: SideChannel | None) -> dict[str, Any] | None:
        answer = agree_on_folder(
            self.config,
            self.place,
            channel=channel,
            claim=self._claim,
            started_ns=self._started_ns,
            number=self._number,
        )
        if "error" in answer:
            if self.place.rank == 0 or channel is None:
                say(f"nothing is recorded: {answer['error']}")
            self.failed = True
            return None
        self.folder = Path(answer["folder"])
        leave_word(f"{FOLDERS}{os.getpid()}", f"{self.folder}\n")
        if not self._claimed:
            self.outbox.put({"do": "run", "folder": answer["folder"]})
        self.outbox.put({"do": "facts", "run_id": answer["run_id"]})
        self.settled.set()
        return answer

    def _claim(self, run_id: str) -> dict[str, Any]:
        self._claimed = True
        out = self.config.out
        self.outbox.put({"do": "claim", "run_id": run_id, **self._of_launch})
        try:
            return self._replies.get(timeout=_CLAIM_S)
        except queue.Empty:
            return {"error": f"{out}: no answer from storage within {_CLAIM_S:g} s"}

    def _probe_when_asked(self, channel: SideChannel, boot_id_of_rank_0: str | None) -> None:
        here = clock_probe.boot_id()
        asks = self.place.rank != 0 and not self.place.local_rank and here != boot_id_of_rank_0
        number = clock_probe.register(channel, rank=self.place.rank) if asks else None
        while (when := self._probes.get()) is not None:
            if self.place.rank == 0:
                deadline = time.monotonic() + 10.0
                clock_probe.serve(channel, when=when, wait_for_more=partial(self._has_time, deadline))
            elif number is not None:
                probe = clock_probe.ask(channel, number=number, when=when)
                if probe is not None:
                    self._clocks.append(probe)
                    self.outbox.put({"do": "facts", "clock_probes": list(self._clocks)})

    def _has_time(self, until: float) -> bool:
        time.sleep(_OPEN_RUN_LOOK_S)
        return self._probes.empty() and time.monotonic() < until
