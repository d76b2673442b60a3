"""The way out of the training process: a pipe to a helper process that does all writing.

A line put here costs one `write` to a pipe, never waits, and outlives the process: when training is killed the
helper still has every line and finishes the run folder. Where the helper cannot keep up (hanging storage) lines are
dropped and counted; training never notices.

    job --(lines)--> pipe --> helper process --> run folder
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STEP = b"s"
_STEP = STEP.decode()
MESSAGE = b"m"
_PIPE_BYTES = 1 << 20
_HELD_BYTES = 1 << 20
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, Linux
_LOOK_S = 0.05
_LEAVES_S = 5.0  # for a process whose answers ended to be gone
# What starts other tools or us inside the helper; it has to be a plain interpreter.
_NOT_FOR_HELPER = ("STEPSCOPE_RECORD", "LD_PRELOAD", "PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT")


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

            fcntl.fcntl(self._pipe, _SET_PIPE_SIZE, _PIPE_BYTES)
        reader = threading.Thread(target=self._read_replies, args=(on_reply,), name="stepscope", daemon=True)
        reader.start()

    @property
    def helper_pid(self) -> int:
        """The process number of the helper."""
        return self._helper.pid

    def put_step(self, *lines: str) -> None:
        """Send lines of the step log."""
        self._put("".join([f"{_STEP}{line}\n" for line in lines]).encode())

    def put(self, message: dict[str, Any]) -> None:
        """Send a message: `run`, `trace`, `file`, `facts`, `where` or `close`."""
        self._put(MESSAGE + json.dumps(message, default=str).encode() + b"\n")

    def finish(self, *, own_wait_s: float, grace_s: float) -> bool:
        """Close the pipe and return whether the helper was done in time; otherwise it goes on alone.

        It has `own_wait_s` for this rank's files, and then `grace_s` for what depends on other ranks; but on storage
        that fails it has no time at all.
        """
        os.set_blocking(self._pipe, True)
        threading.Thread(target=self._close_pipe, name="stepscope", daemon=True).start()
        until = time.monotonic() + own_wait_s
        while not self._own_files_done.wait(_LOOK_S) and self.failing is None and time.monotonic() < until:
            pass
        try:
            self._helper.wait(timeout=grace_s if self.failing is None else 0)
        except subprocess.TimeoutExpired:
            self._helper.returncode = 0  # it is left alone on purpose: no warning about it at exit
            return False
        return True

    def forget(self) -> None:
        """Let go of the pipe in a forked child, so that the helper sees the end of its real parent."""
        self._let_go()
        self._pipe = -1  # its number may become that of another file
        self._helper.returncode = 0

    def _put(self, data: bytes) -> None:
        with self._lock:
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
            self._hold(data[sent:])

    def _hold(self, rest: bytes) -> None:
        """Keep what the pipe did not take; past the limit the newest lines are dropped."""
        while len(rest) > _HELD_BYTES:
            rest = rest[: rest[:-1].rfind(b"\n") + 1]
            self.dropped += 1
        self._held = rest

    def _close_pipe(self) -> None:
        with contextlib.suppress(OSError):
            if self._held:
                os.write(self._pipe, self._held)
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
                elif "storage" in reply:
                    self.failing = reply["storage"]
                else:
                    on_reply(reply)
        self._own_files_done.set()  # the helper is gone
        code = self._exit_code()
        if code:
            on_reply({"error": f"the process that writes the run ended with code {code} ({sys.executable})"})

    def _exit_code(self) -> int | None:
        """Return what the helper ended with, None where it closed its answers and goes on."""
        try:
            return self._helper.wait(timeout=_LEAVES_S)
        except subprocess.TimeoutExpired:
            return None


def _start_helper(settings: dict[str, Any]) -> "subprocess.Popen[bytes]":
    root = str(Path(__file__).resolve().parents[3])
    program = f"import sys; sys.path.insert(0, {root!r}); from stepscope.record.helper.writer import main; main()"
    environment = {k: v for k, v in os.environ.items() if k not in _NOT_FOR_HELPER}
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program, json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # An orphan that holds the job's stderr would keep whoever reads it waiting.
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=environment,
        start_new_session=True,
    )
