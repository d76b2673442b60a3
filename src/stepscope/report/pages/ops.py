"""Operators with their times, calls, shapes and memory, from the rows of the report's JSON."""

from collections.abc import Sequence

from stepscope.report.sheet import Column, Document, Section, Sheet, section_of, unit_text

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
