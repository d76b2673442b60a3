"""Runs of any size from small real ones: their events repeated, later each time.

Times, correlation and external ids, flow ids, event indices and step numbers advance with every repetition, so that
launches still match their kernels and steps follow each other.
"""

import gzip
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import ROOT

SAMPLES = ROOT / "tests" / "data"
ONE_RANK, FOUR_RANKS = SAMPLES / "h200-fsdp2", SAMPLES / "h200-hsdp"
TIME, STEP = '"ts": ', "ProfilerStep#"
MOVING = re.compile(
    r'("ts": |"correlation": |"External id": |"Ev Idx": |"id": |"Sequence number": |ProfilerStep#'
    r'|"wait_on_cuda_event_record_corr_id": )(\d+)'
)


def large_run(
    folder: Path, *, ranks: int, events: int, sample: Path | None = None, max_steps: int | None = None
) -> Path:
    """Return the folder of a run with so many events per rank, created once; `max_steps` limits the marked steps."""
    sample = sample or FOUR_RANKS
    target = folder / f"{sample.name}-{ranks}x{events}{f'-{max_steps}steps' if max_steps else ''}"
    if target.exists():
        return target
    unfinished = target.with_suffix(".tmp")
    unfinished.mkdir(parents=True, exist_ok=True)
    samples = [json.loads(gzip.decompress(p.read_bytes())) for p in sorted(sample.glob("*.json.gz"))[:ranks]]
    of_ranks = [repeatable(one.pop("traceEvents")) for one in samples]
    repetitions = max(1, round(events / max(map(len, of_ranks))))
    # One window for all ranks keeps them together.
    window_us = max(int(max(e["ts"] for e in mine) - min(e["ts"] for e in mine)) for mine in of_ranks) + 1000
    for rank in range(ranks):
        same = rank % len(samples)
        document = samples[same]
        document.setdefault("distributedInfo", {}).update(rank=rank, world_size=ranks)
        with (unfinished / f"rank{rank}.json").open("w") as f:
            f.write(json.dumps(document)[:-1] + ', "traceEvents": [\n')
            if rank == same:
                f.writelines(repeated(of_ranks[same], repetitions, window_us, max_steps))
            else:
                with (unfinished / f"rank{same}.json").open() as events_of_same:
                    events_of_same.readline()
                    shutil.copyfileobj(events_of_same, f, 1 << 20)
    unfinished.rename(target)
    return target


def repeatable(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without device work whose launch is missing and without the profiler's own end."""
    spans = [e for e in events if e.get("ph") in ("X", "s", "f") and e.get("cat") != "Trace"]
    launches = [e for e in spans if e.get("cat") in ("cuda_runtime", "cuda_driver")]
    launched = {e.get("args", {}).get("correlation") for e in launches}
    return [
        e
        for e in spans
        if e["name"] != "cudaDeviceSynchronize"
        and ("correlation" not in e.get("args", {}) or e["args"]["correlation"] in launched)
    ]


def repeated(events: list[dict[str, Any]], repetitions: int, window_us: int, max_steps: int | None) -> Iterator[str]:
    text = ",\n  ".join(map(json.dumps, events))
    found = [(m.group(1), int(m.group(2))) for m in MOVING.finditer(text)]
    num_steps = len({number for key, number in found if key == STEP})
    num_ids = 1 + max(number for key, number in found if key not in (TIME, STEP))
    parts = MOVING.split(text)
    count = max(1, max_steps // num_steps) if max_steps else repetitions
    marked = {round(i * repetitions / count) for i in range(count)}
    for i in range(repetitions):
        moved = parts[:]
        for at in range(1, len(parts), 3):
            by = {TIME: window_us, STEP: num_steps}.get(parts[at], num_ids)
            moved[at + 1] = str(int(parts[at + 1]) + i * by)
        body = "".join(moved)
        yield (",\n  " if i else "") + (body if i in marked else body.replace(f'"name": "{STEP}', '"name": "Step '))
    yield "\n]}\n"


def gzipped(plain: Path) -> Path:
    """Return the same file gzipped next to it, created once."""
    packed = plain.with_suffix(".json.gz")
    if not packed.exists():
        unfinished = packed.with_suffix(".tmp")
        with plain.open("rb") as source, gzip.open(unfinished, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        unfinished.rename(packed)
    return packed
