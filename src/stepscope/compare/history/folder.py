"""A folder of runs as rows, kept in `.stepscope/history.jsonl`, so that only new and changed runs are analysed.

    FOLDER/monday/run.json, FOLDER/monday/rank00000...   one run; also FOLDER/2026-11/monday, up to three levels below
    FOLDER/.stepscope/history.jsonl                      a line per run: key, row

The key is all that a row follows from: the run's files by size, times and content, and the code itself. A row that came
with somebody's folder fits none.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from stepscope.analyze.account import account_of
from stepscope.analyze.sampled.load import load_run
from stepscope.compare.history.row import HistoryRow, HostTime, row_of_logs, row_of_report
from stepscope.contract.run_folder import CACHE_FOLDER, RUN_JSON, json_object, json_object_in
from stepscope.diagnose.findings import diagnose
from stepscope.document.kept import code_key
from stepscope.document.report import report_json
from stepscope.errors import InputError, StepscopeError
from stepscope.json_text import json_text
from stepscope.run.sources import holds_traces
from stepscope.run.step_log import readable_step_logs
from stepscope.side_file import is_number
from stepscope.trace.content_key import content_key
from stepscope.trusted_file import open_trusted_file, write_trusted_file

KEPT = "history.jsonl"
MAX_RUNS = 10_000
_LEVELS = 3
_MAX_FILES = 50_000
_MAX_KEPT_BYTES = 64 << 20
Progress = Callable[[int, int], None]
"""Called with runs done so far and runs in all."""


def run_folders(folder: Path) -> list[Path]:
    """Return the runs below a folder, or itself where it is one, by name."""
    try:
        found = list(_runs_below(folder, _LEVELS))
    except OSError as error:
        raise InputError(f"cannot look for runs in {folder}: {error.strerror}; check the path") from error
    if len(found) > MAX_RUNS:
        raise InputError(f"more than {MAX_RUNS:,} runs below {folder}; give one of the folders in it")
    if not found:
        raise InputError(f"no runs (run.json or traces) in {folder}, up to {_LEVELS} levels below; check the path")
    return found


def history_rows(
    folder: Path, *, traces: bool = True, jobs: int | None = None, cache: bool = True, progress: Progress | None = None
) -> list[HistoryRow]:
    """Return a row for every run below a folder; without `traces` by run.json and step logs alone."""
    runs = run_folders(folder)
    kept = _kept(folder) if cache else {}
    rows: list[HistoryRow] = []
    keys: list[str | None] = []
    for number, run in enumerate(runs):
        if progress:
            progress(number, len(runs))
        key = _key(run, traces=traces)
        found = kept.get(key) if key else None
        rows.append(found or row_of_run(run, name=_name(run, folder), traces=traces, jobs=jobs, cache=cache))
        keys.append(key)
    if cache and any(key and key not in kept for key in keys):
        _keep(folder, rows, keys)
    return rows


def row_of_run(
    folder: Path, *, name: str, traces: bool = True, jobs: int | None = None, cache: bool = True
) -> HistoryRow:
    """Return the row of one run; one that cannot be read says why."""
    description = json_object_in(folder / RUN_JSON)
    try:
        logs, _ = readable_step_logs(folder)
        if traces and holds_traces(folder):
            account = account_of(load_run(folder, jobs=jobs, cache=cache))
            return row_of_report(name, report_json(account, diagnose(account)), description, logs)
        if logs:
            return row_of_logs(name, logs, description)
        return HistoryRow(run=name, problem="neither traces nor step logs")
    except (StepscopeError, OSError) as error:
        return HistoryRow(run=name, problem=str(error)[:300])


def _runs_below(folder: Path, levels: int) -> Iterator[Path]:
    if (folder / RUN_JSON).is_file() or holds_traces(folder):
        yield folder
        return
    if not levels:
        return
    for below in sorted(folder.iterdir()):
        if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
            yield from _runs_below(below, levels - 1)


def _name(run: Path, folder: Path) -> str:
    return str(run.relative_to(folder)) if run != folder else run.resolve().name


# Rows that were kept -------------------------------------------------------------------------------------------------


def _key(run: Path, *, traces: bool) -> str | None:
    """Return what a row follows from, None where that cannot be told."""
    try:
        files = [
            p for p in sorted(run.rglob("*")) if CACHE_FOLDER not in p.parts and p.is_file() and not p.is_symlink()
        ]
    except OSError:
        return None
    if len(files) > _MAX_FILES:
        return None
    content = {str(p.relative_to(run)): content_key(p) for p in files}
    if None in content.values():
        return None
    followed = {"files": content, "code": code_key(), "traces": traces, "run": str(run)}
    text = json.dumps(followed, sort_keys=True, allow_nan=False)
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=20).hexdigest()


def _kept(folder: Path) -> dict[str, HistoryRow]:
    found: dict[str, HistoryRow] = {}
    try:
        with open_trusted_file(folder / CACHE_FOLDER / KEPT, max_bytes=_MAX_KEPT_BYTES) as f:
            for line in f:
                entry = json_object(line) or {}
                row = row_from_json(entry.get("row"))
                if row is not None and isinstance(entry.get("key"), str):
                    found[entry["key"]] = row
    except OSError:
        return found
    return found


def _keep(folder: Path, rows: Sequence[HistoryRow], keys: Sequence[str | None]) -> None:
    entries = [{"key": key, "row": asdict(row)} for row, key in zip(rows, keys, strict=True) if key]
    text = "".join(json_text(entry) + "\n" for entry in entries).encode(errors="surrogatepass")
    if len(text) <= _MAX_KEPT_BYTES:
        write_trusted_file(folder / CACHE_FOLDER / KEPT, [text])


_TEXTS = ("created", "commit", "config", "device", "step_source", "verdict", "problem")
_NUMBERS = ("world_size", "step_ms", "mfu", "tokens_per_s", "peak_memory_bytes")


def row_from_json(value: Any) -> HistoryRow | None:
    """Return the row that a kept line holds, None where it is not exactly one."""
    if not isinstance(value, dict) or set(value) != {f.name for f in fields(HistoryRow)}:
        return None
    sound = (
        isinstance(value["run"], str)
        and all(value[name] is None or isinstance(value[name], str) for name in _TEXTS)
        and all(value[name] is None or is_number(value[name]) for name in _NUMBERS)
        and all(isinstance(value[name], list) for name in ("hosts", "findings", "host_times"))
        and all(isinstance(host, str) for host in value["hosts"])
        and all(_is_finding(one) for one in value["findings"])
        and all(_is_host_time(one) for one in value["host_times"])
    )
    if not sound:
        return None
    return HistoryRow(
        **{
            **value,
            "hosts": tuple(value["hosts"]),
            "findings": tuple((name, saving) for name, saving in value["findings"]),
            "host_times": tuple(HostTime(**one) for one in value["host_times"]),
        }
    )


def _is_finding(one: Any) -> bool:
    return isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and is_number(one[1])


def _is_host_time(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and set(one) == {f.name for f in fields(HostTime)}
        and isinstance(one["host"], str)
        and is_number(one["slowdown"], low=0)
        and isinstance(one["has_rank_0"], bool)
    )
