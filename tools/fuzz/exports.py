"""Exports of Nsight Systems and tables of Nsight Compute: hostile schemas, values of wrong types, damaged pages."""

import json
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from tools.fuzz.case import Case, Recipe, node, seed
from tools.fuzz.seeds import OUTPUTS, any_command, seed_text
from tools.fuzz.values import VALUES

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
        edits, what = _edits(rng)
        place = rng.choice(("run/rank00000.nsys.sqlite", "run/export.sqlite", "x.sqlite"))
        argv = any_command(rng, rng.choice((place, "run")) if place.startswith("run/") else place)
        if rng.random() < 0.15:
            argv = ("import", place, "--into", "new")
        files: dict[str, Recipe] = {place: seed(EXPORT, *edits)}
        yield Case(argv, files, kind="exports", what=what, outputs=(*OUTPUTS, "new", ".stepscope", "run/.stepscope"))


def _edits(rng: Random) -> tuple[list[list[Any]], str]:
    if rng.random() < 0.4:
        size = len(seed_text(EXPORT))
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
    table = rng.choice(tuple(COLUMNS))
    column = rng.choice(COLUMNS[table])
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
