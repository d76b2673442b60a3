"""Source lines, modules and operators with what they cost, from the JSON of `stepscope code` and `ops`."""

from collections.abc import Callable, Sequence

from stepscope.report.sheet import Column, Document, Section, Sheet, Value, section_of, table_of, unit_text

_MIN_PCT = 0.1
_MIN_MS = 0.005
_MAX_SHOWN = 60
_KEYS: dict[str, Callable[[Document], float]] = {
    "device": lambda row: float(row["device_ms"] + row["comm_ms"]),
    "host": lambda row: float(row["host_ms"]),
    "exposed": lambda row: float(row["exposed_ms"]),
    "saving": lambda row: -1.0 if row["saving_ms"] is None else float(row["saving_ms"]),
}


def code_sheet(
    document: Document, *, modules: bool = False, sort: str | None = None, everything: bool = False
) -> Sheet:
    """Return the page: lines in the order of the source, modules in that of the tree, or the largest first."""
    rows = document["modules" if modules else "code"]
    shown = [row for row in rows if everything or row["step_pct"] is None or row["step_pct"] >= _MIN_PCT]
    if sort:
        shown = sorted(shown, key=_KEYS[sort], reverse=True)
    elif modules:
        shown = _as_tree(shown)
    else:
        files = list(dict.fromkeys(row["file"] for row in shown))
        shown = sorted(shown, key=lambda row: (files.index(row["file"]), row["line"]))
    what = (("module", "text", "module"),) if modules else (("line", "text", _place),)
    more: tuple[Column, ...] = () if modules else (("function", "text", "function"), ("source", "name", _source))
    on_device = any(row["device_ms"] for row in rows)
    table = table_of(
        shown,
        *what,
        ("step", "pct", "step_pct"),
        ("saves", "ms", lambda row: "" if row["saving_ms"] is None else row["saving_ms"]),
        ("host", "ms", _worth("host_ms")),
        ("device", "ms", _worth("device_ms")),
        ("backward", "ms", _worth(f"backward_{'device' if on_device else 'host'}_ms")),
        ("comm", "ms", _worth("comm_ms")),
        ("exposed", "ms", _worth("exposed_ms")),
        *more,
    )
    ranks = document["ranks"]
    facts = [f"mean of {len(ranks)} ranks" if len(ranks) > 1 else f"rank {ranks[0]}", "per step"]
    if document["step_ms"] is not None:
        while_profiled = " while profiled" if document["step_ms"] == document["profiled_step_ms"] else ""
        facts.append(f"step {unit_text(document['step_ms'], 'ms')}{while_profiled}")
    title = "Modules" if modules else "Source lines"
    none = () if shown else ("no module took part" if modules else "no line took part",)
    section = Section("code", title, none, table=table, most=max(1, len(shown)) if everything else _MAX_SHOWN)
    notes = _notes(document, rows, len(rows) - len(shown))
    return Sheet(f"Code of {document['run']}", tuple(facts), (), (section,), tuple(notes))


def _place(row: Document) -> str:
    first, last = row["line"], row["line_to"]
    return f"{row['file']}:{first}{'' if first == last else f'-{last}' if last else '+'}"


def _source(row: Document) -> str:
    return str(row["source"] or "(source not recorded)").strip()


def _worth(name: str) -> Callable[[Document], Value]:
    return lambda row: row[name] if row[name] is not None and row[name] >= _MIN_MS else ""


def _as_tree(rows: Sequence[Document]) -> list[Document]:
    order = {row["module"]: i for i, row in enumerate(rows)}

    def place(row: Document) -> tuple[int, ...]:
        parts = row["module"].split(".")
        return tuple(order.get(".".join(parts[: i + 1]), len(order)) for i in range(len(parts)))

    return sorted((row for row in rows if row["module"]), key=place)


def _notes(document: Document, rows: Sequence[Document], left_out: int) -> list[str]:
    unowned = document["unowned"]
    shares = [f"{unowned[f'{k}_pct']:.1f} % of {k}" for k in ("host", "device") if unowned[f"{k}_pct"] is not None]
    lines = [f"unattributed: {' and '.join(shares)} time"] if shares else []
    lines.append("a line's times include what it called, so they do not add up")
    if any(row["saving_ms"] is not None for row in rows):
        lines.append("saves: by replay of the step with the line removed (stepscope whatif RUN --without OWNER)")
    if not document["exact_lines"]:
        lines.append("lines are those where functions begin: this recording lacks the executing lines")
    if left_out:
        lines.append(f"{left_out} with less than {_MIN_PCT} % of the step are left out; --all shows them")
    return lines


# Operators with their times, calls, shapes and memory, from the rows of the report's JSON.
#
#: choices of --sort, and the columns that they stand for
KEYS = {
    "device": "device_self_ms",
    "host": "host_self_ms",
    "device-total": "device_total_ms",
    "host-total": "host_total_ms",
    "calls": "calls",
    "device-memory": "device_memory_bytes",
    "host-memory": "host_memory_bytes",
}
MOST = 20


def operators_section(
    operators: Sequence[Document], steps: int | None, *, sort: str | None = None, most: int | None = None
) -> list[Section]:
    """Return the operators per step, the most expensive first; no section where none were recorded."""
    on_device = any(row["device_total_ms"] for row in operators)
    key = KEYS[sort or ("device" if on_device else "host")]
    per, of = max(1, steps or 0), "per step" if steps else "in the window"

    title = key.removesuffix("_ms").removesuffix("_bytes").replace("_", " ")

    def column(title: str, unit: str, name: str) -> Column:
        return title, unit, lambda row: None if row[name] is None else row[name] / per

    device = [column("device self", "ms", "device_self_ms"), column("device total", "ms", "device_total_ms")]
    return section_of(
        "operators", f"Operators {of}, by {title}", "",
        sorted(operators, key=lambda row: -abs(row[key] or 0))[:most],
        ("operator", "name", "name"),
        *(device if on_device else ()),
        column("host self", "ms", "host_self_ms"), column("host total", "ms", "host_total_ms"),
        column("calls", "count", "calls"),
        *((column("device memory", "bytes", "device_memory_bytes"),) if on_device else ()),
        column("host memory", "bytes", "host_memory_bytes"),
        ("shapes", "name", lambda row: row["shapes"] or ""),
        most=MOST,
    )  # fmt: skip


def ops_sheet(document: Document, *, sort: str | None = None) -> Sheet:
    """Return the page of `stepscope ops`."""
    facts = [f"mean of {document['num_ranks']} ranks" if document["num_ranks"] > 1 else "1 rank"]
    if document["step_ms"] is not None:
        facts.append(f"step {unit_text(document['step_ms'], 'ms')} while profiled")
    sections = operators_section(document["operators"], document["num_steps"], sort=sort)
    none = () if sections else ("no operators were recorded",)
    return Sheet(f"Operators of {document['run']}", tuple(facts), (), tuple(sections), none)
