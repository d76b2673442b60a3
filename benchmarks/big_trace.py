"""A trace of any size from a small real one: its events over and over, later each time, with ids of their own.

Times, correlation and external ids, flow ids, event indices and step numbers move on with every repetition, so that
launches still meet their kernels and steps follow each other. Metadata events are written once.
"""

import gzip
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

SAMPLE = Path(__file__).parent.parent / "tests" / "data" / "h200-fsdp2" / "rank0.json.gz"
_SEPARATOR = "\n  },\n  {"
MOVING = re.compile(
    r'("ts": |"correlation": |"External id": |"Ev Idx": |"id": |"Sequence number": |ProfilerStep#'
    r'|"wait_on_cuda_event_record_corr_id": )(\d+)'
)
TIME = '"ts": '
STEP = "ProfilerStep#"


def big_trace(folder: Path, megabytes: int, *, compressed: bool, max_steps: int) -> Path:
    """Return a trace of at least so many megabytes in `folder`, made unless it is there already."""
    plain = folder / f"{megabytes}MB-{max_steps}steps.json"
    if not plain.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = plain.with_suffix(".tmp")
        with unfinished.open("w") as f:
            f.writelines(_pieces(megabytes * 1_000_000, max_steps))
        unfinished.rename(plain)
    return gzipped(plain) if compressed else plain


def gzipped(plain: Path) -> Path:
    """Return the same file gzipped beside it, made unless it is there already."""
    packed = plain.with_suffix(".json.gz")
    if not packed.exists():
        unfinished = packed.with_suffix(".tmp")
        with plain.open("rb") as source, gzip.open(unfinished, "wb", compresslevel=5) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        unfinished.rename(packed)
    return packed


def _pieces(size: int, max_steps: int) -> Iterator[str]:
    head, body, metadata, tail = _sample()
    yield head
    times = [int(m.group(2)) for m in MOVING.finditer(body) if m.group(1) == TIME]
    window_us = max(times) - min(times) + 1000
    steps = sorted({int(m.group(2)) for m in MOVING.finditer(body) if m.group(1) == STEP})
    num_ids = 1 + max(int(m.group(2)) for m in MOVING.finditer(body) if m.group(1) not in (TIME, STEP))
    parts = MOVING.split(body)
    repetitions = max(1, round(size / len(body)))
    kept = with_steps(repetitions, max_steps // len(steps))
    for i in range(repetitions):
        body = moved(parts, i, window_us, num_ids, len(steps))
        yield body if i in kept else unmarked(body)
        yield ",\n  {" if i + 1 < repetitions else ""
    yield _SEPARATOR.removeprefix("\n  }") + metadata + tail


def with_steps(repetitions: int, count: int) -> set[int]:
    """Return which repetitions keep their steps, `count` of them from the first on, evenly spread."""
    return {round(i * repetitions / count) for i in range(count)}


def unmarked(body: str) -> str:
    """Return the events without their steps."""
    return body.replace(f'"name": "{STEP}', '"name": "Step ')


def moved(parts: list[str], repetition: int, window_us: int, num_ids: int, num_steps: int) -> str:
    """Return one repetition of a text that `MOVING` split: later, with ids and steps of its own."""
    out = parts[:]
    for i in range(1, len(parts), 3):
        key = parts[i]
        by = window_us if key == TIME else num_steps if key == STEP else num_ids
        out[i + 1] = str(int(parts[i + 1]) + repetition * by)
    return "".join(out)


def _sample() -> tuple[str, str, str, str]:
    """Return the sample as head (with the first brace), repeated events, metadata events and tail."""
    text = gzip.decompress(SAMPLE.read_bytes()).decode()
    start = text.index("[", text.index('"traceEvents"')) + len("[\n  {")
    end = text.rindex("\n  }\n  ]")
    events = text[start:end].split(_SEPARATOR)
    metadata = [e for e in events if '"ph": "M"' in e or '"ph": "i"' in e]
    body = [e for e in events if e not in set(metadata)]
    return text[:start], _SEPARATOR.join(body) + "\n  }", _SEPARATOR.join(metadata), text[end:]
