"""Memory of a run or of snapshots, from the JSON of `stepscope memory`: peaks by category and holder, gaps, growth."""

from collections.abc import Sequence

from stepscope.contract.names import category_name
from stepscope.report.sheet import Document, Section, Sheet, Values, card, picture, section_of, table_of
from stepscope.units import readable_bytes

_MAX_SNAPSHOTS = 8
_MAX_SIZES = 12


def memory_sheet(document: Document, *, rank: int | None = None) -> Sheet:
    """Return the page, of the rank with the highest peak where no other is requested."""
    ranks = (document["memory"] or {"ranks": ()})["ranks"]
    of = _shown_rank(ranks, rank)
    snapshots = sorted(document["snapshots"], key=lambda one: -one["peak"]["allocated_bytes"])
    shown = [one for one in snapshots if rank is None or one["rank"] in (rank, None)][:_MAX_SNAPSHOTS]
    sections = [
        *(section for one in shown for section in _out_of_memory(one)),
        *(_traced(document, of) if of else []),
        *_ranks(ranks),
        *(section for k, one in enumerate(shown) for section in _snapshot(one, most=0 if k else 12)),
        *section_of(
            "predicted",
            "Measured and predicted",
            "The most in the window; predicted by the model's and the optimizer's formulas.",
            [row for row in document["predicted"] if row["predicted_bytes"] is not None],
            ("category", "text", lambda row: category_name(row["category"])),
            ("measured", "bytes", "measured_bytes"),
            ("formula", "bytes", "predicted_bytes"),
        ),
        *_what_ifs(document["what_ifs"]),
    ]
    names = [one["path"] for one in document["snapshots"]]
    title = document["run"] or (names[0] if names else "memory")
    facts = [f"{len(names)} snapshot{'s' * (len(names) != 1)}"] if names else []
    cards = (*_cards(document, of, len(ranks)), *_snapshot_cards(shown))
    return Sheet(f"Memory of {title}", tuple(facts), cards, tuple(sections), tuple(document["warnings"]))


def _shown_rank(ranks: Sequence[Document], rank: int | None) -> Document | None:
    chosen = [one for one in ranks if rank in (None, one["rank"])]
    return max(chosen, key=lambda one: one["peak_allocated_bytes"] or 0, default=None)


def _cards(document: Document, of: Document | None, num_ranks: int) -> list[Values]:
    if of is None:
        return []
    others = next((one["size_bytes"] for one in document["other_processes"] if one["rank"] == of["rank"]), None)
    highest = f", highest of {num_ranks} ranks" if num_ranks > 1 else ""
    grows = of["growth"]["bytes_per_step"] if of["growth"] and of["growth"]["leaks"] else None
    found = (
        ("Peak allocated", of["peak_allocated_bytes"], "bytes", f"rank {of['rank']}{highest}", ""),
        ("Peak reserved", of["peak_reserved_bytes"], "bytes", f"rank {of['rank']}", ""),
        ("Device", of["device_total_bytes"], "bytes", "", ""),
        ("Other processes", others, "bytes", "on the same device", ""),
        ("Process on the host", of["host_peak_bytes"], "bytes", "peak", ""),
        ("Growth per step", grows, "bytes", "allocated at the ends of steps", "high"),
        (
            "Allocator retries",
            of["allocator_retries"] or None,
            "count",
            "cache emptied over the logged steps",
            "medium",
        ),
    )
    return [card(*one) for one in found if one[1] is not None]


def _snapshot_cards(shown: Sequence[Document]) -> list[Values]:
    found = []
    for one in shown[:1]:
        found.append(card("Peak of the snapshot", one["peak"]["allocated_bytes"], "bytes", one["path"]))
        parts = [f"largest piece {readable_bytes(one['largest_free_bytes'])}"]
        if one["fragmentation"] is not None:
            parts.append(f"fragmentation {one['fragmentation']:.2f}")
        parts.append(f"{readable_bytes(one['unused_segment_bytes'])} in segments that hold nothing")
        found.append(card("Free in segments", one["free_bytes"], "bytes", "; ".join(parts)))
    return found


# Of a trace


def _traced(document: Document, of: Document) -> list[Section]:
    peak, reasons = of["peak"], of["reasons"]
    names = ("memory_of_fullest", "memory_peak", "memory_over_steps", "memory_over_run")
    pictures = tuple(picture("pictures", name, document) for name in names)
    known = [
        f"{category_name(k)}: {reasons[k]}." for k in ("peak", "peak_allocated_bytes", "by_category") if k in reasons
    ]
    leaks = [_leak(one["name"], one) for one in of["leaks"]]
    if peak is None:
        return [Section("memory", f"Memory of rank {of['rank']}", (*known, *leaks), pictures[0], None, pictures[1:])]
    parts = {**(peak["by_category"] or {}), **({"reserved_unused": of["cache_bytes"]} if peak["by_category"] else {})}
    unknown = [f"{category_name(k)}: {reasons[k]}." for k, size in parts.items() if size is None and k in reasons]
    step = "" if peak["step"] is None else f" in step {peak['step']}"
    table = table_of(
        parts.items(), ("category", "text", lambda p: category_name(p[0])), ("size", "bytes", lambda p: p[1])
    )
    title = f"Peak of rank {of['rank']}{step}, {peak['phase']}"
    held = "by_source_line" if peak["by_source_line"] else "by_operator"
    return [
        Section("memory", title, (*known, *unknown, *leaks), pictures[0], table, pictures[1:]),
        *_holders("lines" if held == "by_source_line" else "operators", peak[held]),
        *_holders("modules", peak["by_module"]),
    ]


def _holders(what: str, held: Sequence[Document]) -> list[Section]:
    columns = ((what.removesuffix("s"), "text", "name"), ("size", "bytes", "size_bytes"))
    return section_of(f"held-by-{what}", f"Alive at the peak, by {what.removesuffix('s')}", "", held, *columns)


def _ranks(ranks: Sequence[Document]) -> list[Section]:
    return section_of(
        "ranks",
        "Ranks",
        "",
        ranks if len(ranks) > 1 else (),
        ("rank", "rank", "rank"),
        ("peak allocated", "bytes", "peak_allocated_bytes"),
        ("peak reserved", "bytes", "peak_reserved_bytes"),
        ("of the device", "pct", "peak_pct_of_total"),
        ("process on the host", "bytes", "host_peak_bytes"),
        most=0,
    )


def _leak(name: str, leak: Document) -> str:
    return f"Leak suspect: {name} keeps {readable_bytes(leak['bytes_per_step'])} of each of {leak['steps']} steps."


# Of a snapshot


def _out_of_memory(one: Document) -> list[Section]:
    error = one["out_of_memory"]
    if error is None:
        return []
    rank = "" if one["rank"] is None else f" of rank {one['rank']}"
    module = f" in {error['module']}" if error["module"] else ""
    what = f", {category_name(error['purpose'])}" if error["purpose"] else ""
    lines = [
        f"{readable_bytes(error['requested_bytes'])} requested at {error['place'] or 'an unknown line'}{module}{what}."
    ]
    if error["device_free_bytes"] is not None:
        names = ("allocated_bytes", "device_free_bytes", "largest_free_bytes", "missing_bytes")
        allocated, free, largest, missing = (readable_bytes(error[name]) for name in names)
        pieces = f"largest free piece in segments {largest}"
        lines.append(f"{allocated} allocated, {free} free on the device, {pieces}: {missing} short.")
    fits = error.get("fits") or []
    lines += dict.fromkeys(row["why"] for row in fits if row["why"] and row["fits"] is not None)
    table = table_of(
        fits,
        ("change", "text", "change"),
        ("peak, at least", "bytes", "peak_low_bytes"),
        ("at most", "bytes", "peak_high_bytes"),
        (
            "would have fitted",
            "text",
            lambda row: {True: "yes", False: "no", None: row["why"] or "unknown"}[row["fits"]],
        ),
    )
    key = "out-of-memory" if one["rank"] is None else f"out-of-memory-{one['rank']}"
    held = section_of(
        f"{key}-lines",
        f"Alive at the error{rank}, by line",
        "",
        error["by_line"],
        ("line", "text", "place"),
        ("size", "bytes", "size_bytes"),
        ("purpose", "text", lambda line: category_name(line["purpose"])),
        ("blocks", "count", "blocks"),
    )
    return [Section(key, f"Out of memory{rank}", tuple(lines), None, table if fits else None), *held]


def _snapshot(one: Document, *, most: int) -> list[Section]:
    of = "" if one["rank"] is None else f" of rank {one['rank']}"
    key = "snapshot" if one["rank"] is None else f"snapshot-{one['rank']}"
    peak, end, reasons = one["peak"], one["end"], one["reasons"]
    rows = [(category_name(name), size, end["by_purpose"][name]) for name, size in peak["by_purpose"].items()]
    rows += [(name, peak[f"{name}_bytes"], end[f"{name}_bytes"]) for name in ("allocated", "reserved")]
    table = table_of(
        [row for row in rows if any(row[1:]) or None in row],
        ("purpose", "text", lambda row: row[0]),
        ("peak", "bytes", lambda row: row[1]),
        ("end", "bytes", lambda row: row[2]),
    )
    lines = [f"Device {one['device']}, {one['num_events']:,} events, {one['num_segments']} segments."]
    lines += [_leak(leak["place"], leak) for leak in one["leaks"]]
    lines += _sizes("Allocated after each optimizer step", one["step_end_bytes"])
    lines += _sizes("Largest gaps between tensors", [gap["size_bytes"] for gap in one["gaps"]])
    lines += [f"{category_name(name)}: {why}." for name, why in reasons.items()]
    owner, purpose = (picture("pictures", "snapshot_memory", one, by) for by in ("owner", "purpose"))
    alive = section_of(
        f"{key}-lines",
        f"Alive at the peak{of}, by line",
        "",
        peak["by_line"],
        ("line", "text", "place"),
        ("size", "bytes", "size_bytes"),
        ("purpose", "text", lambda line: category_name(line["purpose"])),
        ("blocks", "count", "blocks"),
        most=most,
    )
    return [Section(key, f"Memory snapshot{of}", tuple(lines), owner, table, (purpose,), most), *alive]


def _sizes(what: str, sizes: Sequence[int]) -> list[str]:
    return [f"{what}: {', '.join(map(readable_bytes, sizes[-_MAX_SIZES:]))}."] if sizes else []


# What-ifs


def _what_ifs(answers: Sequence[Document]) -> list[Section]:
    notes = [line for one in answers for line in (*one["notes"], *dict.fromkeys(one["reasons"].values()))]
    found = section_of(
        "what-if",
        "Peak with changes",
        "By formulas on measured sizes.",
        answers,
        ("change", "text", "change"),
        ("peak now", "bytes", "measured_bytes"),
        ("at least", "bytes", "peak_low_bytes"),
        ("at most", "bytes", "peak_high_bytes"),
        ("time, at least", "signed_ms", "extra_low_ms"),
        ("time, at most", "signed_ms", "extra_high_ms"),
        ("in", "text", "phase"),
    )
    return [Section(s.id, s.title, (*s.lines, *dict.fromkeys(notes)), None, s.table) for s in found]
