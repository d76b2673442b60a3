"""The launches of one sweep: on ranks of our own, or on a launcher's, where rank 0 decides and the others follow.

A session that fails is followed by another, which goes on without what failed; one that is complete is the last. So the
other ranks of a launcher know when to stop without being told what is measured: settings come from rank 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.bench.session.launch import LaunchResult, launch
from stepscope.bench.session.launcher import LauncherPlace

REFUSED = 2
MEASURING = "stepscope.bench.sweeps.child:job"
FITTING = "stepscope.bench.sweeps.fitting:job"
_END_S = 60.0


@dataclass(frozen=True)
class Method:
    """How, where and for how long to measure."""

    backend: str = "gloo"
    runs: int = 3
    warmup_steps: int = 10
    steps: int = 50
    #: micro-batches of variants that say nothing else
    accumulation: int = 1
    threads: int = 1
    item_limit_s: float = 300.0
    limit_s: float = 3600.0
    world_size: int = 1
    share_devices: bool = False
    #: that one rank may take
    memory_limit_bytes: int | None = None


@dataclass
class Sessions:
    """Where the next launch runs, and how many there were."""

    launched: LauncherPlace | None = None
    number: int = 0

    def start(
        self,
        job: str,
        settings: Mapping[str, Any],
        *,
        method: Method,
        out: Path,
        limit_s: float,
        on_record: Callable[[dict[str, Any]], None] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> LaunchResult:
        """Return how the next session ended."""
        self.number += 1
        return launch(
            {"job": job, "settings": settings, "threads": method.threads, "share_devices": method.share_devices},
            world_size=method.world_size,
            backend=method.backend,
            out=out,
            limit_s=limit_s,
            on_record=on_record,
            environ=environ,
            launched=self.launched,
            session=self.number - 1,
        )

    def end(self, last: LaunchResult | None, *, method: Method, out: Path) -> None:
        """Tell the other ranks of a launcher that there is nothing more to do, where the last session failed."""
        if self.launched and last and not last.complete and not last.interrupted:
            self.start(MEASURING, {"items": []}, method=method, out=out, limit_s=_END_S)

    def follow(self, job: str, *, method: Method, out: Path, environ: Mapping[str, str] | None = None) -> LaunchResult:
        """Return how the last session ended, after taking part in all of rank 0's."""
        while True:
            place = out / f"session{self.number:03d}"
            result = self.start(job, {}, method=method, out=place, limit_s=method.limit_s, environ=environ)
            refused = REFUSED in result.exit_codes
            if result.complete or result.interrupted or refused or not any(result.records):
                return result


def cut_off(result: LaunchResult) -> bool:
    """Return whether we ended the ranks although none had failed: the time was up."""
    return not result.complete and not result.interrupted and None in result.exit_codes and not any(result.exit_codes)


def last_words(result: LaunchResult) -> dict[str, Any]:
    """Return the record in which a rank gave up; one that ran out of memory before those that only lost it."""
    words = [record for rank in result.records for record in rank if record["what"] in ("out_of_memory", "failed")]
    return max(words, key=lambda record: record["what"] == "out_of_memory", default={})
