"""A run that has begun: its helper process, the folder agreed on with the other ranks, its clock probes.

Everything slow happens on one background thread or in the helper; the training thread only puts messages.
"""

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stepscope.contract.live import WindowPlan, plan_of
from stepscope.record.config import RecordConfig
from stepscope.record.failsafe import explain, say
from stepscope.record.helper import clock_probe
from stepscope.record.helper.agreement import agree_on_folder
from stepscope.record.helper.outbox import Outbox
from stepscope.record.helper.scratch import make_scratch
from stepscope.record.helper.side_channel import ChannelClosed, SideChannel, open_side_channel
from stepscope.record.live.settings import live_settings
from stepscope.record.progress_notes import CLOSED, FOLDERS, HELPER, SEEN_VARIABLE, leave_word
from stepscope.record.rank import Place

_CLAIM_S = 30.0
_LATE_ASKERS_S = 10.0
_LOOK_S = 0.1
_opened = itertools.count()
"""runs of this process; all ranks open them in the same order"""


class OpenRun:
    """What this rank sends out of the process, and what it hears back."""

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
                "live": live_settings(config, place, environ=os.environ),
            },
        )
        leave_word(f"{HELPER}{self.outbox.helper_pid}")
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
        elif self.outbox.failing and not self.failed and SEEN_VARIABLE not in os.environ:  # else the launcher says it
            say(f"the run is incomplete: {self.outbox.failing}; a helper process keeps trying for a minute")
        leave_word(f"{HELPER}{self.outbox.helper_pid}.{CLOSED}")

    def wait_for_folder(self, *, give_up: bool = False) -> None:
        """Wait until the folder is known, but not for storage that fails; `give_up` asks for no folder then."""
        until = time.monotonic() + self.config.close_wait_s
        while not self.settled.wait(_LOOK_S) and time.monotonic() < until:
            if self.outbox.failing and not give_up:
                return
            if self.outbox.failing and self._replies.empty():
                self._replies.put({"error": f"{self.config.out}: {self.outbox.failing}; make room, or give --out"})

    def forget(self) -> None:
        """Let go of everything in a forked child."""
        self.outbox.forget()

    def _hear(self, message: dict[str, Any]) -> None:
        """Take what the helper says: a window that all ranks will profile, a question, or an answer."""
        if "window" in message:
            plan = plan_of(message["window"])
            if plan is not None:
                self._on_asked(plan)
        elif "where" in message:
            self.outbox.put({"do": "where", **self._answer()})
        else:
            self._replies.put(message)

    def _answer(self) -> dict[str, Any]:
        try:
            return self._where()
        except Exception as e:  # noqa: BLE001 - the next question may come
            return {"silent": explain(e)}

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
        self.outbox.put({"do": "claim", "out": out, "run_id": run_id, "launch_id": self.config.run_id})
        try:
            return self._replies.get(timeout=_CLAIM_S)
        except queue.Empty:
            return {"error": f"{out}: no answer from storage within {_CLAIM_S:g} s"}

    def _probe_when_asked(self, channel: SideChannel, boot_id_of_rank_0: str | None) -> None:
        """Serve or ask each time the window says so; ranks on rank 0's host have nothing to ask."""
        here = clock_probe.boot_id()
        asks = self.place.rank != 0 and not self.place.local_rank and here != boot_id_of_rank_0
        number = clock_probe.register(channel, rank=self.place.rank) if asks else None
        while (when := self._probes.get()) is not None:
            if self.place.rank == 0:
                deadline = time.monotonic() + _LATE_ASKERS_S
                clock_probe.serve(channel, when=when, wait_for_more=partial(self._has_time, deadline))
            elif number is not None:
                probe = clock_probe.ask(channel, number=number, when=when)
                if probe is not None:
                    self._clocks.append(probe)
                    self.outbox.put({"do": "facts", "clock_probes": list(self._clocks)})

    def _has_time(self, until: float) -> bool:
        """Return, after a moment, whether nothing else is to be done until then."""
        time.sleep(_LOOK_S)
        return self._probes.empty() and time.monotonic() < until
