"""What is known of a job before anything is tried, from the folder of its first run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.contract.run_folder import RUN_JSON, json_object_in, rank_file
from stepscope.contract.tuning import TRIAL
from stepscope.dataclass import dataclass
from stepscope.run.step_log import step_logs


@dataclass(frozen=True)
class Loader:
    """One `DataLoader`, as the script asked for it."""

    num_workers: int
    pin_memory: bool
    prefetch_factor: int | None
    persistent_workers: bool
    map_style: bool


@dataclass(frozen=True)
class Job:
    """What decides which settings can matter."""

    device: str
    """cpu, cuda or rocm"""
    cores: int
    """of this machine, that the job may use"""
    local_ranks: int
    backend: str | None
    has_ddp: bool
    loaders: tuple[Loader, ...] = ()
    loader_starts: int = 0
    """how often a loader began again after the first step"""
    optimizer: str | None = None
    optimizer_chosen: bool = False
    """the script asked for a fused or a foreach form itself"""
    threads: int | None = None
    convolutions: bool = False
    environment: Mapping[str, str] | None = None
    """variables that matter for performance, as they were"""
    mimalloc: bool = False
    """torch brings its own allocator for the CPU here"""

    @property
    def on_cuda(self) -> bool:
        """Return whether it trains on a GPU."""
        return self.device in ("cuda", "rocm")

    @property
    def cores_per_rank(self) -> int:
        """Return how many cores each rank of this machine can have for itself."""
        return max(1, self.cores // max(1, self.local_ranks))


def job_in(folder: Path, *, cores: int, mimalloc: bool = False) -> Job:
    """Return what the folder of a trial tells of its job; what it does not tell is left out of what is tried."""
    run, noted = json_object_in(folder / RUN_JSON), json_object_in(folder / rank_file(0, TRIAL))
    device, optimizer = _object(run, "device"), _object(noted, "optimizer")
    hosts = [ranks for ranks in _object(run, "hosts").values() if isinstance(ranks, list)]
    loaders = noted.get("loaders")
    return Job(
        device=str(device.get("kind") or "cpu"),
        cores=cores,
        local_ranks=max(map(len, hosts), default=1),
        backend=_text(run.get("backend")),
        has_ddp=bool(run.get("ddp")),
        loaders=tuple(_loader(one) for one in loaders if isinstance(one, dict)) if isinstance(loaders, list) else (),
        loader_starts=_loader_starts(folder),
        optimizer=_text(optimizer.get("name")),
        optimizer_chosen=optimizer.get("fused") is not None or optimizer.get("foreach") is not None,
        threads=_count(noted.get("threads")),
        convolutions=noted.get("convolutions") is True,
        environment={k: v for k, v in _object(run, "environment").items() if isinstance(v, str)},
        mimalloc=mimalloc,
    )


def _loader_starts(folder: Path) -> int:
    counts = [float(np.nansum(log.column("regions.loader_start.n")[1:])) for log in step_logs(folder)]
    return int(max(counts, default=0.0))


def _loader(found: Mapping[str, Any]) -> Loader:
    return Loader(
        num_workers=_count(found.get("num_workers")) or 0,
        pin_memory=found.get("pin_memory") is True,
        prefetch_factor=_count(found.get("prefetch_factor")),
        persistent_workers=found.get("persistent_workers") is True,
        map_style=found.get("map_style") is True,
    )


def _object(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 20 else None
