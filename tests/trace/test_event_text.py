"""Events come back whole by their offset, from any packing."""

import gzip
import json
from pathlib import Path

from tests.trace.test_reading_faults import SAMPLE, event, text_of

from stepscope.trace.parts import events_at
from stepscope.trace.read import read


def test_events_are_found_by_offset_in_any_order() -> None:
    trace = read(SAMPLE)
    events = json.loads(gzip.decompress(SAMPLE.read_bytes()))["traceEvents"]
    rows = [14000, 3, 7000, 3, 0]
    assert events_at(SAMPLE, [int(trace["offset"][row]) for row in rows]) == [events[row] for row in rows]


def test_what_is_no_event_is_none(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text_of(event(), '{"ph": "X", "name": "a "bare" quote", "ts": 1, "dur": 1}'))
    trace = read(path)
    assert trace.num_events == 2
    assert events_at(path, [*trace["offset"].tolist(), 10**9]) == [event(), None, None]
