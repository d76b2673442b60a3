"""Every field of every kind of event and of the header, each with every hostile value, in random order."""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from random import Random
from typing import Any

from tools.fuzz.case import Case, seed
from tools.fuzz.seeds import OUTPUTS, TRACES, any_command, run_files, seed_json
from tools.fuzz.values import VALUES

from stepscope.trace.schema import ARGS

_MAX_KINDS = 60
_EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "args")
_HEADER_KEYS = ("baseTimeNanoseconds", "baseTimeNanosecond", "distributedInfo", "deviceProperties", "traceEvents")
_MEMORY_KEYS = ("Device Id", "Device Type", "Total Allocated", "Total Reserved", "Bytes", "Addr")


def changed_fields(rng: Random) -> Iterator[Case]:
    """Yield traces in which one field, of the header or of one event or of all events of its kind, is hostile."""
    while True:
        name = rng.choice(TRACES)
        path = rng.choice(field_paths(name))
        value = rng.choice(VALUES)
        alone = "run/rank00000.pt.trace.json"
        edit: list[Any] = ["set", path, value]
        if path[0] == "traceEvents" and len(path) > 2 and len(value) < 1000 and rng.random() < 0.2:
            edit = ["set_all", path[2:], value, rng.randrange(1, 5)]
        with_others = rng.random() < 0.2
        run = "run" if with_others else rng.choice((alone, "run"))
        recipe = seed(name, edit)
        files = run_files() | {"run/rank00000.pt.trace.json.gz": recipe} if with_others else {alone: recipe}
        yield Case(
            argv=any_command(rng, run),
            files=files,
            kind="fields",
            what=f"{'.'.join(map(str, path))[:80]} = {value[:40]}",
            outputs=OUTPUTS,
        )


@cache
def field_paths(name: str) -> list[list[Any]]:
    """Return where a value can be set in a trace: each field of the header, and of one event of each kind."""
    document = seed_json(name)
    header = {key: value for key, value in document.items() if key != "traceEvents"}
    paths = [*([key] for key in _HEADER_KEYS), *islice(_paths(header), 200)]
    kinds: dict[Any, int] = {}
    for number, event in enumerate(document["traceEvents"]):
        if isinstance(event, dict):
            args = event.get("args")
            keys = tuple(sorted(args)) if isinstance(args, dict) else ()
            kinds.setdefault((event.get("ph"), event.get("cat"), keys), number)
    known = [key for column in ARGS for key in column.keys] + list(_MEMORY_KEYS)
    for number in islice(kinds.values(), _MAX_KINDS):
        args = document["traceEvents"][number].get("args")
        wanted = {*known, *args} if isinstance(args, dict) else set()
        paths += [["traceEvents", number, key] for key in _EVENT_KEYS]
        paths += [["traceEvents", number, "args", key] for key in sorted(wanted)]
        paths.append(["traceEvents", number])
    return paths


def json_paths(document: Any) -> list[list[Any]]:
    """Return the place of every value in a JSON document."""
    return list(_paths(document))


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield [*above, key]
        yield from _paths(below, (*above, key))
