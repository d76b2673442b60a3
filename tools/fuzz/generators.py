"""Generators of hostile inputs: damaged traces, hostile fields, side files and exports, odd command lines."""

import argparse
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from random import Random
from typing import Any

from tools.fuzz.case import Case, Recipe, any_forgery, node, seed, text
from tools.fuzz.seeds import (
    ESC,
    LARGER_TRACES,
    OUTPUTS,
    TRACES,
    VALUES,
    WORDS,
    any_command,
    run_files,
    seed_json,
    seed_text,
)

from stepscope.cli.arguments import LazyParser
from stepscope.cli.main import COMMANDS, command_parser
from stepscope.trace.table import ARGS

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_TOKENS = ("[", "]", "{", "}", '"', ",", ":", "\\", "\x00", "\n", "\xff", "\xef\xbb\xbf", '"args":{', '"ph":"X",', "]}")


def mutated_traces(rng: Random, traces: Sequence[str] = ()) -> Iterator[Case]:
    """Yield traces with one to four random changes, ours or the given ones."""
    while True:
        name = rng.choice(traces or (LARGER_TRACES if rng.random() < 0.03 else TRACES))
        size = len(seed_text(name))
        edits = [_edit(rng, name, size) for _ in range(rng.choice((1, 1, 1, 2, 4)))]
        packed, ending = _packed(rng)
        path = f"run/rank00000.pt.trace.json{ending}"
        yield Case(
            argv=any_command(rng, rng.choice((path, "run"))),
            files={path: seed(name, *edits, *packed)},
            kind="mutations",
            what=" ".join(edit[0] for edit in (*edits, *packed)),
            outputs=OUTPUTS,
        )


def _edit(rng: Random, name: str, size: int) -> list[Any]:
    at = rng.randrange(size)
    length = min(size - at, rng.choice((1, 2, 10, 100, 1000, size // 4)))
    change = rng.randrange(9)
    if change == 0:
        return ["replace", at, at + 1, chr(rng.randrange(256))]
    if change == 1:
        return ["replace", at, at + length, ""]
    if change == 2:
        return ["replace", at, at, rng.choice(_TOKENS)]
    if change == 3:
        return ["copy", at, at + length, rng.randrange(size)]
    if change == 4:
        return ["swap", at, at + length // 2, at + length]
    if change == 5:
        return ["keep", 0, at]
    if change == 6:
        return ["keep", at, size]
    if change == 7:
        return ["times", rng.choice((2, 3))]
    # A number or a whole value, at a place where the JSON stays sound.
    found = _NUMBER.search(seed_text(name), at) or _NUMBER.search(seed_text(name))
    value = rng.choice(VALUES).encode("utf-8", "surrogatepass").decode("latin-1")
    return ["replace", *(found.span() if found else (at, at + 1)), value]


def _packed(rng: Random) -> tuple[list[list[Any]], str]:
    """Return how the text is compressed, and perhaps damaged again, and the ending that says so, or another."""
    kind = rng.choice(("", "", "", "gzip", "gzip", "zstd"))
    if not kind:
        return [], rng.choice(("", "", "", ".gz", ".zst"))
    edits: list[list[Any]] = [[kind, rng.choice((1, 6, 9) if kind == "gzip" else (-5, 1, 3, 19))]]
    if rng.random() < 0.3:
        edits.append(["times", 2])
    if rng.random() < 0.5:
        at = rng.randrange(2000)
        edits.append(rng.choice((["keep", 0, at], ["replace", at, at + 1, chr(rng.randrange(256))])))
    return edits, rng.choice((".gz", ".gz", ".zst", ""))


_MAX_KINDS = 60
_EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "args")
_HEADER_KEYS = ("baseTimeNanoseconds", "baseTimeNanosecond", "distributedInfo", "deviceProperties", "traceEvents")
_MEMORY_KEYS = ("Device Id", "Device Type", "Total Allocated", "Total Reserved", "Bytes", "Addr")


def changed_fields(rng: Random, traces: Sequence[str] = TRACES) -> Iterator[Case]:
    """Yield traces in which one field, of the header or of one event or of all events of its kind, is hostile."""
    while True:
        name = rng.choice(traces)
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
    is_array = isinstance(document, list)  # a trace may be its events alone
    events, place = (document, []) if is_array else (document["traceEvents"], ["traceEvents"])
    header = {} if is_array else {key: value for key, value in document.items() if key != "traceEvents"}
    paths: list[list[Any]] = [] if is_array else [*([key] for key in _HEADER_KEYS), *islice(_paths(header), 200)]
    kinds: dict[Any, int] = {}
    for number, event in enumerate(events):
        if isinstance(event, dict):
            args = event.get("args")
            keys = tuple(sorted(args)) if isinstance(args, dict) else ()
            kinds.setdefault((event.get("ph"), event.get("cat"), keys), number)
    known = [key for column in ARGS for key in column.keys] + list(_MEMORY_KEYS)
    for number in islice(kinds.values(), _MAX_KINDS):
        args = events[number].get("args")
        wanted = {*known, *args} if isinstance(args, dict) else set()
        paths += [[*place, number, key] for key in _EVENT_KEYS]
        paths += [[*place, number, "args", key] for key in sorted(wanted)]
        paths.append([*place, number])
    return paths


def json_paths(document: Any) -> list[list[Any]]:
    """Return the place of every value in a JSON document."""
    return list(_paths(document))


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[list[Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield [*above, key]
        yield from _paths(below, (*above, key))


_COLLECTIVE = ("predict", "collective", "--op", "all_reduce", "--bytes", "1MB", "--world-size", "2", "--json", "-")
_STRATEGY = ("predict", "strategy", "--world-size", "8", "--seq-len", "128", "--sequences", "64", "--device", "H200")
_SMALL = ("--layers", "2", "--d-model", "64", "--heads", "4", "--vocab", "256")


@dataclass(frozen=True)
class Side:
    """A kind of file."""

    place: str
    seed: str
    commands: tuple[tuple[str, ...], ...] = ()
    """that read it; any command that reads a run where there are none"""


SIDES = (
    Side("run/run.json", "gloo-linear/run.json"),
    Side("run/rank00000.steps.jsonl", "gloo-linear/rank00000.steps.jsonl"),
    Side("run/rank00001.steps.jsonl", "gloo-linear/rank00001.steps.jsonl", (("watch", "run", "--once"),)),
    Side("run/live/rank00001.jsonl", "side_files/live_status.jsonl", (("watch", "run", "--once"),)),
    Side("run/rank00001.flight_recorder.jsonl", "gloo-linear/rank00001.flight_recorder.jsonl"),
    Side(
        "run/rank00000.owners.json.gz",
        "side_files/owners.json",
        (
            ("code", "run", "--json", "-"),
            ("code", "run", "--modules"),
            ("report", "run", "--json", "-"),
            ("report", "run", "--html", "out.html"),
            ("whatif", "run", "--without", "train.py:21", "--json", "-"),
            ("whatif", "run", "--scale", "module:0=0.5"),
            ("export", "run", "--csv", "tables"),
        ),
    ),
    Side("run/rank00000.telemetry.jsonl", "side_files/telemetry.jsonl"),
    Side("run/rank00000.collectives.jsonl", "side_files/collectives.jsonl"),
    Side("run/rank00001.memory.jsonl", "side_files/memory.jsonl"),
    Side("run/rank00001.nccl.log", "side_files/nccl.log"),
    Side(
        "run/rank00001.flight_recorder.dump",
        "side_files/flight_recorder.dump",
        (("hang", "run"), ("hang", "run/rank00001.flight_recorder.dump", "--json", "-"), ("report", "run")),
    ),
    Side(
        "run/rank00001.memory.pickle",
        "side_files/memory.pickle",
        (
            ("memory", "run", "--what-if", "zero=1", "--what-if", "checkpointing=2"),
            ("memory", "run/rank00001.memory.pickle", "--what-if", "batch=2x", "--json", "-"),
            ("report", "run"),
        ),
    ),
    Side("job.nccl.log", "nccl_logs/nccl_vm_1059.log", (("import", "job.nccl.log", "--into", "run", "--force"),)),
    Side("run/job.nccl.log", "nccl_logs/nccl_vm_1060.log"),
    Side("run/rank00001.pt.trace.json.gz", "gloo-linear/rank00001.pt.trace.json.gz"),
    Side("run/rank00001.inductor.json", "side_files/inductor.json"),
    Side("run/rank00001.capture.0.pt.trace.json.gz", "gloo-linear/rank00001.pt.trace.json.gz"),
    Side("run/rank00000.oom.memory.pickle", "side_files/memory.pickle", (("memory", "run", "--json", "-"),)),
    Side(
        "run/window1/rank00000.pt.trace.json.gz",
        "gloo-linear/rank00000.pt.trace.json.gz",
        (("report", "run"), ("report", "run/window1", "--json", "-"), ("compare", "run", "run/window1")),
    ),
    Side("run/window1", "side_files/README.md", (("report", "run", "--json", "-"), ("report", "run/window1"))),
    Side("run/.stepscope/rank00000.pt.trace.json.gz.columns", "gloo-linear/run.json"),
    Side("run/calibration.json", "side_files/calibration.json", (("report", "run", "--html", "out.html"),)),
    Side(
        "calibration.json",
        "side_files/calibration.json",
        (
            (*_COLLECTIVE, "--calibration", "calibration.json"),
            ("predict", "scale", "run", "--world-size", "4", "--calibration", "calibration.json", "--json", "-"),
            (*_STRATEGY, *_SMALL, "--calibration", "calibration.json"),
            ("report", "run", "--html", "out.html", "--calibration", "calibration.json"),
        ),
    ),
    Side(
        "times.csv",
        "nccl_collectives/collectives_w4_half.csv",
        (("calibrate", "--from-csv", "times.csv", "--out", "out.json", "--plot", "out.svg"),),
    ),
    Side(
        "all_reduce.txt",
        "side_files/all_reduce_perf.txt",
        (("calibrate", "--from-nccl-tests", "all_reduce.txt", "--out", "out.json"),),
    ),
    Side(
        "nccl.json",
        "side_files/nccl_tests.json",
        (("calibrate", "--from-nccl-tests", "nccl.json", "--out", "out.json", "--json", "-"),),
    ),
    Side("times.json", "side_files/times.json", (("calibrate", "--from-bench", "times.json", "--out", "out.json"),)),
    Side(
        "config.json",
        "side_files/config.json",
        (
            ("predict", "flops", "--config", "config.json", "--seq-len", "128", "--json", "-"),
            ("predict", "memory", "--config", "config.json", "--seq-len", "128", "--strategy", "zero3", "--data", "4"),
            (*_STRATEGY, "--config", "config.json"),
        ),
    ),
    Side(
        "chips.toml",
        "side_files/chips.toml",
        (
            ("report", "run", "--hardware", "chips.toml", "--json", "-"),
            ("predict", "memory", *_SMALL, "--seq-len", "128", "--hardware", "chips.toml", "--device", "Own chip"),
        ),
    ),
    Side("bench.toml", "side_files/bench.toml", (("bench", "ddp", "--config", "bench.toml"),)),
    Side("bench.yaml", "side_files/bench.yaml", (("bench", "collectives", "--config", "bench.yaml"),)),
    Side("bench.yaml", "side_files/bench.yaml", (("bench", "precision", "--config", "bench.yaml"),)),
    Side(
        "a/results.json",
        "side_files/results.json",
        (("compare", "a", "b", "--json", "-"), ("compare", "a", "b", "--fail-on", "step_ms>5%")),
    ),
)
_YAML_BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
_CSV = "op,world_size,bytes,median_us\n"
_WHOLE = (
    *("", " ", "\x00", "\xff\xfe{\x00}\x00", "\xef\xbb\xbf{}", "9" * 5000, "\n" * 100_000, "x," * 100_000),
    *("null", "5", "[]", "{}", '""', "NaN", "1e999", "{"),
    *("[" * 100_000, '{"a":' * 100_000, "- " * 20_000, "a: [" * 5_000, "[a" * 5_000, "? " * 3_000),
    *(f"{'9' * 900_000} coll channels", "NCCL version " * 50_000, "via a/b " * 100_000, "NCCL WARN " + "x" * 900_000),
    *("a = " + "[" * 5_000, "a." * 5_000 + "b = 1", _YAML_BOMB, "&a [*a]", "a: *a"),
    "!!python/object/apply:os.system ['touch fuzzed']",
    *(
        f"{_CSV}all_reduce,2,1e400,1\n",
        f"{_CSV}all_reduce,2\n",
        f"{_CSV}all_reduce,2,{2**64},1e-300\nreduce,2,8,1e300\n",
    ),
)
_NODES = (
    *(node("fifo"), node("device", 5), node("device", 3), node("device", 7), node("folder"), node("unreadable")),
    *(node("sparse", 1 << 20), node("sparse", 60 << 30), node("link", "/dev/zero"), node("link", "missing")),
    *(node("link", "."), node("link", "/etc/passwd"), node("link", "fifo")),
)
_TOKEN = re.compile(rb"[\w.+-]+")


def side_files(rng: Random) -> Iterator[Case]:
    """Yield commands with one hostile side file."""
    while True:
        side = rng.choice(SIDES)
        recipe, what = _hostile(rng, side)
        argv = rng.choice(side.commands) if side.commands else any_command(rng, "run")
        files: dict[str, Recipe] = run_files()
        if side.place.startswith("run/") and rng.random() < 0.2:  # a run that was only timed
            files = {name: made for name, made in files.items() if "trace" not in name}
            argv = argv if side.commands else any_command(rng, "run", of=("report", "health", "compare"))
        if side.place.startswith("a/"):
            files = {"b/results.json": seed(side.seed)}
        if recipe.get("value") == "fifo":
            files[f"{side.place.rpartition('/')[0]}/fifo".lstrip("/")] = node("fifo")
        files[side.place] = recipe
        yield Case(argv, files, kind="side files", what=f"{side.place}: {what}", outputs=(*OUTPUTS, "out.svg"))


def _hostile(rng: Random, side: Side) -> tuple[Recipe, str]:
    if side.place.endswith(".columns") and rng.random() < 0.8:
        forgery = any_forgery(rng)
        return node("forged_cache", forgery), f"forged {forgery}"
    change = rng.random()
    if change < 0.12:
        chosen = rng.choice(_NODES)
        return chosen, f"{chosen['node']} {chosen.get('value', '')}"
    if change < 0.25:
        content = rng.choice(_WHOLE)
        return text(content), f"holds {content[:20]!r}"
    edits, what = _edits(rng, side.seed)
    packed = [["gzip", 1]] if side.place.endswith(".gz") else []
    return seed(side.seed, *edits, *packed), what


def _edits(rng: Random, name: str) -> tuple[list[list[Any]], str]:
    """Return a change of one value, or damage."""
    data = seed_text(name)
    value = rng.choice(VALUES)
    if rng.random() < 0.2:
        at = rng.randrange(len(data))
        length = rng.choice((1, 5, 50, 500))
        edit = rng.choice(
            (["keep", 0, at], ["copy", at, at + length, at], ["replace", at, at + length, ""], ["times", 3])
        )
        return [edit], f"{edit[0]} at {at}"
    if name.endswith(".json"):
        path = rng.choice(json_paths(seed_json(name)))
        return [["set", path, value]], f"{'.'.join(map(str, path))} = {value[:40]}"
    if name.endswith(".jsonl"):
        lines = data.rstrip().split(b"\n")
        number = rng.randrange(len(lines))
        path = rng.choice(json_paths(json.loads(lines[number])))
        return [["set_line", number, path, value]], f"line {number}, {'.'.join(map(str, path))} = {value[:40]}"
    start, end = rng.choice([found.span() for found in _TOKEN.finditer(data)])
    word = rng.choice((*VALUES, *WORDS)).encode("utf-8", "surrogatepass").decode("latin-1")
    return [["replace", start, end, word]], f"{data[start:end].decode(errors='replace')} -> {word[:40]!r}"


EXPORT = "nsys-small/export.sqlite.gz"
TABLES = ("ncu-h200/wide.csv", "ncu-h200/long.csv")
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        *("start", "end", "deviceId", "streamId", "contextId", "correlationId", "globalPid", "demangledName"),
        *("shortName", "registersPerThread", "gridX", "blockZ", "staticSharedMemory", "graphNodeId"),
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("start", "end", "deviceId", "streamId", "bytes", "copyKind", "srcKind", "globalPid"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "textId", "globalTid", "domainId", "binaryData"),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("domainId", "schemaId", "name", "offset"),
    "StringIds": ("value",),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs", "systemClockNs"),
    "ANALYSIS_DETAILS": ("startTime",),
    "TARGET_INFO_GPU": ("id", "name", "totalMemory", "smCount"),
    "META_DATA_EXPORT": ("name", "value"),
}
_NUMBERS = ("0", "-1", "1", "7", "1 << 31", "1 << 62", "9223372036854775807", "-9223372036854775808", "1.5", "9e999")
_OTHERS = ("NULL", "'x'", "x'00ff'", "zeroblob(100000)", "zeroblob(17000000)", "randomblob(40)", "'3'")
_SCHEMAS = (
    "DROP TABLE {table}",
    "DELETE FROM {table}",
    "ALTER TABLE {table} RENAME TO other; CREATE VIEW {table} AS SELECT * FROM other",
    "ALTER TABLE {table} RENAME TO other; CREATE VIEW {table} AS SELECT a.* FROM other a, other b, other c, other d",
    "ALTER TABLE {table} RENAME TO other; CREATE TABLE {table} (start, end)",
    "CREATE TRIGGER t AFTER INSERT ON {table} BEGIN SELECT load_extension('x'); END",
    "ALTER TABLE {table} ADD COLUMN more AS (length(hex(zeroblob(9000000))))",
    "CREATE INDEX i ON {table} ({column})",
    "INSERT INTO {table} SELECT * FROM {table}",
    "DROP TABLE StringIds; CREATE TABLE StringIds (id, value)",
    "DROP TABLE StringIds; CREATE TABLE StringIds (id TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "PRAGMA user_version = 7; PRAGMA encoding = 'UTF-16'",
)


def hostile_exports(rng: Random) -> Iterator[Case]:
    """Yield commands that read one hostile export, or one hostile table of metrics."""
    while True:
        if rng.random() < 0.25:
            yield _table(rng)
            continue
        edits, what = _sql_edits(rng)
        place = rng.choice(("run/rank00000.nsys.sqlite", "run/export.sqlite", "x.sqlite"))
        argv = any_command(rng, rng.choice((place, "run")) if place.startswith("run/") else place)
        if rng.random() < 0.15:
            argv = ("import", place, "--into", "new")
        files: dict[str, Recipe] = {place: seed(EXPORT, *edits)}
        yield Case(argv, files, kind="exports", what=what, outputs=(*OUTPUTS, "new", ".stepscope", "run/.stepscope"))


PERFETTO = ("perfetto/sdk.pftrace.gz", "perfetto/torch.pftrace.gz")
CHAKRA = "chakra/chakra.0.et.gz"
ROCPD = "rocpd/small.db.gz"
_ROCPD_SUFFIX = "_00005b1c_9e1a_7d2f_8000_0123456789ab"
_ROCPD_COLUMNS = {
    "rocpd_event": ("id", "category_id", "stack_id", "extdata"),
    "rocpd_string": ("id", "string"),
    "rocpd_info_kernel_symbol": ("id", "display_name"),
    "rocpd_info_agent": ("id", "type", "type_index"),
    "rocpd_info_process": ("id", "pid"),
    "rocpd_kernel_dispatch": ("start", "end", "pid", "agent_id", "kernel_id", "stream_id", "event_id", "grid_size_x"),
    "rocpd_memory_copy": ("start", "end", "name_id", "dst_agent_id", "size"),
    "rocpd_region": ("start", "end", "tid", "name_id", "event_id"),
}


def other_recordings(rng: Random) -> Iterator[Case]:
    """Yield commands that read a hostile Perfetto trace, rocpd database or Chakra trace."""
    while True:
        if rng.random() < 0.7:
            name, place = rng.choice(PERFETTO), "run/rank00000.pftrace"
            if rng.random() < 0.25:
                name, place = CHAKRA, "run/chakra.0.et"
            size = len(seed_text(name))
            edits = [_edit(rng, name, size) for _ in range(rng.choice((1, 1, 2, 4, 30)))]
            packed, ending = _packed(rng) if name != CHAKRA else ([], "")
            recipe, place, what = seed(name, *edits, *packed), place + ending, f"{name}: {edits[0][0]}"
        else:
            edits, what = _sql_edits(rng, ROCPD, _ROCPD_COLUMNS, _ROCPD_SUFFIX)
            recipe, place = seed(ROCPD, *edits), "run/rank00000_results.db"
        argv = any_command(rng, rng.choice((place, "run")))
        if rng.random() < 0.15:
            argv = ("import", place, "--into", "new")
        outputs = (*OUTPUTS, "new", "run/.stepscope")
        yield Case(argv, {place: recipe}, kind="other recordings", what=what, outputs=outputs)


def _sql_edits(
    rng: Random, export: str = EXPORT, columns: dict[str, tuple[str, ...]] = COLUMNS, suffix: str = ""
) -> tuple[list[list[Any]], str]:
    if rng.random() < 0.4:
        size = len(seed_text(export))
        at, length = rng.randrange(size), rng.choice((1, 4, 100, 1024, 4096))
        edits: list[list[Any]] = [
            ["replace", at, at + 1, chr(rng.randrange(256))],
            ["replace", at, at + length, ""],
            ["replace", at, at + length, "\xff" * length],
            ["copy", at, at + length, rng.randrange(size)],
            ["keep", 0, at],
        ]
        edit = rng.choice(edits)
        return [edit], f"{edit[0]} at {at}"
    table = rng.choice(tuple(columns))
    column = rng.choice(columns[table])
    table += suffix
    if rng.random() < 0.35:
        statement = rng.choice(_SCHEMAS).format(table=table, column=column)
    else:
        every = rng.choice((1, 2, 7))
        statement = f'UPDATE {table} SET "{column}" = {_value(rng)} WHERE rowid % {every} = 0'
    return [["sql", statement]], statement[:80]


def _value(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(_NUMBERS)
    if kind < 0.7:
        return rng.choice(_OTHERS)
    value = rng.choice(VALUES)
    with suppress(ValueError):
        value = json.loads(value) if value.startswith('"') else value
    shown = value.encode("utf-8", "replace").decode().replace("\x00", "").replace("'", "''")
    return f"'{shown}'"


def _table(rng: Random) -> Case:
    name = rng.choice(TABLES)
    data = seed_text(name)
    at = rng.randrange(len(data))
    value = rng.choice((*VALUES, "1.234,5", "1,5", '"', "\n", ",,,", "=="))
    word = value.encode("utf-8", "surrogatepass").decode("latin-1")
    edits: list[list[Any]] = [
        ["replace", at, at + rng.choice((0, 1, 5, 50)), word],
        ["keep", 0, at],
        ["copy", at, at + 500, rng.randrange(len(data))],
        ["times", 3],
    ]
    edit = rng.choice(edits)
    files: dict[str, Recipe] = {"run/rank00000.nsys.sqlite": seed(EXPORT, ["keep", 0, 1 << 30])}
    files["run/rank00000.ncu.csv"] = seed(name, edit) if rng.random() < 0.9 else node("fifo")
    argv = ("import", "run/rank00000.ncu.csv", "--into", "new") if rng.random() < 0.3 else any_command(rng, "run")
    return Case(argv, files, kind="exports", what=f"{name}: {edit[0]}", outputs=(*OUTPUTS, "new", "run/.stepscope"))


_RUN = "run"
_MODEL = ("--layers", "2", "--d-model", "64", "--heads", "4", "--vocab", "256", "--seq-len", "64")
_NEEDED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("report",): (_RUN,),
    ("health",): (_RUN,),
    ("compare",): (_RUN, _RUN),
    ("history",): (_RUN, "--no-cache"),
    ("job",): (_RUN,),
    ("investigate",): (_RUN,),
    ("whatif",): (_RUN, "--set", "network=2x"),
    ("code",): (_RUN,),
    ("memory",): (_RUN,),
    ("watch",): (_RUN, "--once"),
    ("trigger",): (_RUN, "--no-wait"),
    ("hang",): (_RUN,),
    ("export",): (_RUN, "--csv", "tables"),
    ("sql",): (_RUN, "SELECT count(*) FROM events"),
    ("view",): (_RUN, "--no-browser", "--port", "0"),
    ("calibrate",): ("--from-csv", "times.csv"),
    ("record",): ("--", "true"),
    ("predict", "collective"): ("--op", "all_reduce", "--bytes", "1MB", "--world-size", "8", "--link", "50:5"),
    ("predict", "flops"): _MODEL,
    ("predict", "memory"): _MODEL,
    ("predict", "scale"): (_RUN, "--world-size", "8"),
    ("predict", "strategy"): (*_MODEL, "--world-size", "8", "--sequences", "64", "--device", "H200"),
}
"""what a command asks for, besides the option that is tried"""
OUTPUT_FILES = frozenset(("--json", "--html", "--perfetto", "--plot", "--out"))
OUTPUT_FOLDERS = frozenset(("--csv", "--parquet", "--tensorboard", "--cache-folder", "--profile-output-dir"))
OUTPUT_OPTIONS = OUTPUT_FILES | OUTPUT_FOLDERS
_OUTSIDE = frozenset(("/", "..", "file:///etc/passwd"))
"""words that an output must not be given here: what it wrote would not be in the case's folder"""
_OUTPUTS: tuple[tuple[str, dict[str, Recipe]], ...] = (
    ("out", {"out": node("fifo")}),
    ("out", {"out": node("device", 3)}),
    ("out", {"out": node("device", 7)}),
    ("out", {"out": node("folder")}),
    ("out", {"out": text("before")}),
    ("out", {"out": node("link", "kept"), "kept": text("keep")}),
    ("out", {"out": node("link", "nothing")}),
    ("out", {"out": node("link", "out")}),
    ("out/x", {"out": node("link", "kept"), "kept/file": text("keep")}),
    ("out/x", {"out": node("folder"), "out/x": node("fifo")}),
    ("out/x", {"out": text("a file")}),
    ("missing/x", {}),
    ("A" * 250, {}),
    ("A" * 300, {}),
    ("A/" * 3000, {}),
    (f"{ESC}.json", {}),
    ("run", {}),
    ("run/run.json", {}),
    ("-", {}),
    ("", {}),
    ("/proc/self/x", {}),
    ("/dev/fd/77", {}),
)


def odd_arguments(rng: Random) -> Iterator[Case]:
    """Yield command lines with an odd word for an option, or in place of a word that is needed."""
    while True:
        command, options = rng.choice(commands())
        words = list(_NEEDED.get(command, ()))
        if words and (not options or rng.random() < 0.25):
            words[rng.randrange(len(words))] = rng.choice(WORDS)
        else:
            words = _with_options(rng, words, [*rng.choices(options, k=rng.choice((1, 1, 1, 2)))])
        yield _case(command, words, what=" ".join(words)[:120])


def odd_outputs(rng: Random) -> Iterator[Case]:
    """Yield commands whose output is no place for one."""
    while True:
        command, options = rng.choice([(c, o) for c, o in commands() if set(o) & OUTPUT_OPTIONS])
        option = rng.choice(sorted(set(options) & OUTPUT_OPTIONS))
        target, files = rng.choice(_OUTPUTS)
        forced = rng.random() < 0.5 and "--force" in options and not target.startswith("/")
        needed = list(_NEEDED.get(command, ()))
        if command == ("export",):
            needed = needed[:1]
        words = [option, target, *(["--force"] if forced else []), *needed]
        stdout = rng.choice(("full", "closed", "ascii")) if rng.random() < 0.05 and command[0] in _READERS else "file"
        case = _case(command, words, what=f"{' '.join(command)} {option} {target[:30]} {sorted(files)} {stdout}")
        # Forced, a regular file or a link may be replaced, by a run's own file too; what a link points to may not.
        there = files.get(target, {}).get("node")
        may = (target,) if target and (there == "link" or (forced and there is None)) else ()
        yield Case(case.argv, case.files | files, "outputs", case.what, outputs=(*case.outputs, *may), stdout=stdout)


_READERS = ("report", "health", "compare", "whatif", "code", "sql")


def _with_options(rng: Random, needed: list[str], options: list[str]) -> list[str]:
    words: list[str] = []
    for option in options:
        allowed = [w for w in WORDS if w not in _OUTSIDE] if option in OUTPUT_OPTIONS else WORDS
        word = rng.choice(allowed)
        words += rng.choice(([option, word], [option, word], [f"{option}={word}"], [option]))
    # What follows `--` is a command: options come first.
    return [*words, *needed] if rng.random() < 0.7 or "--" in needed else [*needed, *words]


def _case(command: tuple[str, ...], words: list[str], *, what: str) -> Case:
    files = run_files() | {"times.csv": seed("nccl_collectives/collectives_w4_half.csv")}
    return Case((*command, *words), files, kind="arguments", what=what, outputs=("tables", "calibration.json"))


@cache
def commands() -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return every command, with the options it takes."""
    found = []
    for name in COMMANDS:
        found += _below(command_parser(name), (name,))
    return found


def _below(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    if isinstance(parser, LazyParser):
        parser.fill()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return [one for name, sub in action.choices.items() for one in _below(sub, (*path, name))]
    # --verbose prints the traceback of an error on purpose
    left_out = ("-h", "--help", "-v", "--verbose")
    return [(path, tuple(o for action in parser._actions for o in action.option_strings if o not in left_out))]
