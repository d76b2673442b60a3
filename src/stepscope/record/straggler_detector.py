"""`stepscope.StragglerDetector`: which rank makes the others wait, while training runs.

    detector = stepscope.StragglerDetector(window=100, threshold=2.0)
    for batch in loader:
        with detector.own_time():             # what this rank does before it waits for others
            loss = model(batch)
        loss.backward()                       # DDP's waiting is in here
        optimizer.step()
        detector.step()
        for late in detector.stragglers():
            print(late.rank, late.late_ms)

After a collective all ranks have the same step time, so lateness shows in own time only. No collective is called: times
are exchanged through the job's store, or through files in `folder`, on a separate thread, once in ten steps.
"""

import atexit
import contextlib
import json
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Protocol

from stepscope.contract.lateness import (
    DEFAULT_SCORE,
    DEFAULT_SLOWDOWN,
    DEFAULT_WINDOW_STEPS,
    LateRank,
    late_ranks,
    lateness,
)
from stepscope.contract.run_folder import atomic_write, json_object_in
from stepscope.errors import UsageError
from stepscope.record.config import initialized_distributed, place_of_process
from stepscope.record.helper.side_channel import ChannelClosed, open_side_channel

# Own times exchanged without a collective: each rank puts `own/r`, rank 0 gathers them into `own/all`, all read that.

_ALL = "own/all"
# values that stand for the window: each is the mean of some steps in a row
_MAX_SENT = 25


class Channel(Protocol):
    """Where words are left."""

    def put(self, key: str, text: str) -> None: ...
    def look(self, key: str) -> str | None: ...
    def close(self) -> None: ...


class FolderChannel:
    """Words as files; `own/3` is `own-3.jsonl`."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def put(self, key: str, text: str) -> None:
        with atomic_write(self._path(key)) as f:
            f.write(text.encode())

    def look(self, key: str) -> str | None:
        found = json_object_in(self._path(key))
        return json.dumps(found) if found else None

    def close(self) -> None:
        """Leave the files where they are."""

    def _path(self, key: str) -> Path:
        return self._folder / f"{key.replace('/', '-')}.jsonl"


class Exchange:
    """Exchanges own times; `known` are the last received ones, by rank."""

    def __init__(self, *, rank: int, world_size: int, channel: Channel | None) -> None:
        self.known: dict[int, list[float]] = {}
        self._rank, self._world_size, self._channel = rank, world_size, channel
        self._waiting: queue.Queue[list[float] | None] = queue.Queue(maxsize=2)
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    def tell(self, own_ms: list[float]) -> None:
        """Hand over this rank's own times; dropped where the last ones are still on their way."""
        if self._channel is None:
            self.known = {self._rank: own_ms}
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="stepscope-stragglers", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(own_ms)

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread. No call may be under way when the interpreter ends."""
        if os.getpid() != self._pid:  # a forked child has no such thread, and maybe its lock
            return
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._waiting.put(None, timeout=timeout_s)
            self._thread.join(timeout_s)
        if self._channel is not None:
            self._channel.close()

    def _work(self) -> None:
        while (own_ms := self._waiting.get()) is not None:
            try:
                self.swap(own_ms)
            except (ChannelClosed, RuntimeError, OSError, ValueError):  # the job's store closed first
                return

    def swap(self, own_ms: list[float]) -> None:
        """Leave this rank's word and read what there is."""
        assert self._channel is not None
        self._channel.put(f"own/{self._rank}", json.dumps({"own_ms": own_ms}))
        if self._rank == 0:
            words = {rank: self._channel.look(f"own/{rank}") for rank in range(self._world_size)}
            heard = {str(rank): _numbers(json.loads(word), "own_ms") for rank, word in words.items() if word}
            self._channel.put(_ALL, json.dumps({rank: ms for rank, ms in heard.items() if ms}))
        everybody = self._channel.look(_ALL)
        if everybody:
            found = json.loads(everybody)
            self.known = {int(rank): ms for rank in found if (ms := _numbers(found, rank))}


def _numbers(found: Mapping[str, Any], name: str) -> list[float]:
    value = found.get(name)
    listed = value if isinstance(value, list) else []
    return [float(x) for x in listed[:_MAX_SENT] if isinstance(x, int | float) and not isinstance(x, bool)]


class StragglerDetector:
    """Own times of this rank over a window of steps, and the last received scores of all ranks.

    A rank is late from a score of `threshold` on (2 where chance names any rank of a healthy run once in a hundred),
    where it is `slowdown` times as slow as the ranks that are not late. Times are exchanged every `every` steps.
    """

    def __init__(
        self,
        window: int = DEFAULT_WINDOW_STEPS,
        threshold: float = DEFAULT_SCORE,
        *,
        window_size: int | None = None,  # the guides' names of both
        threshold_std: float | None = None,
        slowdown: float = DEFAULT_SLOWDOWN,
        every: int = 10,
        folder: str | Path | None = None,
        channel: Channel | None = None,
    ) -> None:
        window = window if window_size is None else window_size
        threshold = threshold if threshold_std is None else threshold_std
        if window < 1 or every < 1:
            raise UsageError(f"window and every have to be whole numbers of at least 1, not {window} and {every}")
        place = place_of_process()
        self.rank, self.world_size = place.rank, place.world_size
        self.threshold, self.slowdown = threshold, slowdown
        self._own_ms: deque[float] = deque(maxlen=window)
        self._gathered: deque[list[float]] = deque(maxlen=window)
        self._every, self._steps, self._spent_ns = every, 0, 0
        if channel is None and place.world_size > 1:
            channel = FolderChannel(folder) if folder is not None else open_side_channel()
        self._exchange = Exchange(rank=place.rank, world_size=place.world_size, channel=channel)
        atexit.register(self.close)

    @contextmanager
    def own_time(self) -> Iterator[None]:
        """Time this rank's own work; several blocks in a step add up."""
        began_ns = time.perf_counter_ns()
        try:
            yield
        finally:
            self._spent_ns += time.perf_counter_ns() - began_ns

    def step(self, own_ms: float | None = None) -> None:
        """End a step; `own_ms` is its own time if measured elsewhere."""
        self._own_ms.append(self._spent_ns / 1e6 if own_ms is None else own_ms)
        self._spent_ns = 0
        self._steps += 1
        if self._steps % self._every == 0:
            self._exchange.tell(self._means())

    def _means(self) -> list[float]:
        own, each = list(self._own_ms), -(-len(self._own_ms) // _MAX_SENT)
        return [round(fmean(own[k : k + each]), 6) for k in range(0, len(own) - each + 1, each)]

    update = record = step  # names that other detectors use

    def scores(self) -> list[LateRank]:
        """Return every rank's last received lateness, the latest first; empty while fewer than two ranks are known."""
        count = min(map(len, self._exchange.known.values()), default=0)
        own_ns = {rank: [1e6 * own for own in own_ms[-count:]] for rank, own_ms in self._exchange.known.items()}
        judged = lateness(own_ns, threshold=self.threshold, slowdown=self.slowdown)
        return sorted(judged, key=lambda one: -one.late_ns)

    def stragglers(self) -> list[LateRank]:
        """Return the ranks that are late, the latest first."""
        return late_ranks(self.scores())

    detect = check = stragglers

    # The interface of guides: seconds, and a collective in each step.

    def record_step(self, step_time: float) -> None:
        """End a step whose own time, before it waited for others, took so many seconds."""
        self.step(1e3 * step_time)

    def gather_times(self, local_time: float) -> list[float]:
        """Return every rank's own time of this step in seconds. A collective: every rank has to call it."""
        group = initialized_distributed()
        if group is None:
            return [local_time]
        found = [local_time] * group.get_world_size()
        group.all_gather_object(found, local_time)
        return found

    def detect_straggler(self, all_times: Sequence[float]) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Add one step's own times of all ranks in seconds; return the late ranks so far and this step's statistics."""
        if self._gathered and len(self._gathered[-1]) != len(all_times):
            self._gathered.clear()
        self._gathered.append(list(all_times))
        own_ns = {rank: [1e9 * s for s in own] for rank, own in enumerate(zip(*self._gathered, strict=True))}
        late = late_ranks(lateness(own_ns, threshold=self.threshold, slowdown=self.slowdown))
        found = [
            {"rank": one.rank, "time": one.own_ns / 1e9, "z_score": one.score, "slowdown": one.slowdown} for one in late
        ]
        low, high = min(all_times), max(all_times)
        spread = high / low if low > 0 else inf
        mean, std = fmean(all_times), pstdev(all_times)
        return found, {"mean": mean, "std": std, "max": high, "min": low, "spread": spread}

    @property
    def is_straggler(self) -> bool:
        """Return whether this rank is late."""
        return any(score.rank == self.rank for score in self.stragglers())

    def close(self) -> None:
        """End the exchange; received values stay."""
        atexit.unregister(self.close)
        self._exchange.close()
