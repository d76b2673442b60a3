"""Memory on the terminal: a rank by category, a snapshot by purpose and line."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from stepscope.analyze.memory import Holder, RankMemory
from stepscope.contract.names import category_name
from stepscope.report.terminal import print_indented
from stepscope.units import NS_PER_MS, printable, readable_bytes

if TYPE_CHECKING:
    from stepscope.analyze.memory_snapshot import Moment, SnapshotView
    from stepscope.predict.memory import MemoryWhatIf, StateRow

_MAX_HOLDERS = 12


def print_rank_memory(one: RankMemory, out: Console, *, ranks: int, others_bytes: int | None = None) -> None:
    """Print the peak of a rank by category and holder, and whether it grows; `others_bytes` is what others hold."""
    fullest = f", highest peak of {ranks} ranks" if ranks > 1 else ""
    out.print(Text(f"rank {one.rank}{fullest}", style="bold"))
    totals = (
        ("peak allocated", one.peak_allocated_bytes),
        ("peak reserved", one.peak_reserved_bytes),
        ("device", one.device_total_bytes),
        ("other processes on it", others_bytes),
        ("process on the host, peak", one.host_peak_bytes),
    )
    for name, size in totals:
        if size is not None:
            out.print(f"  {name:<27} {readable_bytes(size):>10}")
    if one.peak is not None and one.peak.by_category is not None:
        where = f" in step {one.peak.step}" if one.peak.step is not None else ""
        out.print(f"at the peak{where}, {one.peak.phase}:")
        _print_parts({**one.peak.by_category, "reserved_unused": one.cache_bytes}, one.reasons, out)
    if one.peak is not None:
        held = one.peak.by_source_line
        _print_holders("by line" if held else "by operator", held or one.peak.by_operator, out)
        _print_holders("by module", one.peak.by_module, out)
    if one.growth is not None and one.growth.leaks:
        out.print(f"grows by {readable_bytes(one.growth.bytes_per_step)} per step")
    for leak in one.leaks:
        kept = f"{readable_bytes(leak.bytes_per_step)} of each of {leak.steps} steps"
        out.print(Text(f"leak suspect: {printable(leak.name)} keeps {kept}"))
    if one.allocator_retries:
        out.print(
            f"the allocator emptied its cache and tried again {one.allocator_retries} times over the logged steps"
        )
    for name in ("peak", "peak_allocated_bytes", "by_category"):
        if name in one.reasons:
            print_indented(out, Text(f"{category_name(name)}: {one.reasons[name]}", style="dim"), indent="  ")


def _print_holders(title: str, held: tuple[Holder, ...], out: Console) -> None:
    if held:
        out.print(f"alive at the peak, {title}:")
    for holder in held[:_MAX_HOLDERS]:
        out.print(Text(f"  {readable_bytes(holder.size_bytes):>10}  {printable(holder.name)}"))


def print_snapshot(rank: int | None, view: "SnapshotView", out: Console, *, others: int) -> None:
    """Print a snapshot: its peak and its end by purpose, what is alive at the peak by line, gaps and leaks."""
    of = f" of rank {rank}" if rank is not None else ""
    out.print(
        Text(f"memory snapshot{of}, device {view.device}", style="bold").append(
            f"  {view.num_events:,} events, {view.num_segments} segments", style="not bold"
        )
    )
    _print_moments(view.peak, view.end, view.reasons, out)
    out.print("alive at the peak, by line:")
    for line in view.peak.by_line:
        blocks = f"{line.blocks} block{'s' if line.blocks > 1 else ''}"
        held = f"{category_name(line.purpose)}, {blocks}"
        out.print(Text(f"  {readable_bytes(line.size_bytes):>10}  {printable(line.place)}  {held}"))
    _print_free(view, out)
    if view.step_end_bytes:
        sizes = ", ".join(readable_bytes(b) for b in view.step_end_bytes[-_MAX_HOLDERS:])
        print_indented(out, Text(f"allocated after each optimizer step: {sizes}"), indent="  ")
    for leak in view.leaks[:_MAX_HOLDERS]:
        kept = f"{readable_bytes(leak.bytes_per_step)} of each of {leak.steps} steps"
        out.print(Text(f"leak suspect: {printable(leak.place)} keeps {kept}"))
    for name in ("replay", "events", "growth"):
        if name in view.reasons:
            print_indented(out, Text(f"{name}: {view.reasons[name]}", style="dim"), indent="  ")
    if others:
        out.print(f"and {others} more snapshots: --rank R shows one, --json all")


def print_predicted(rows: "Sequence[StateRow]", out: Console) -> None:
    """Print predicted next to measured peak memory, if a prediction exists."""
    if not any(row.predicted_bytes is not None for row in rows):
        return
    out.print(Text(f"  {'the most in the window':<27} {'measured':>10} {'formula':>10}", style="dim"))
    for row in rows:
        if row.predicted_bytes is not None:
            out.print(
                f"  {category_name(row.category):<27} {_size(row.measured_bytes):>10} {_size(row.predicted_bytes):>10}"
            )


def print_memory_what_ifs(answers: "Sequence[MemoryWhatIf]", out: Console, *, rank: int | None) -> None:
    """Print the peak with each change, what it costs in time, and what its formula assumes."""
    if not answers:
        return
    of = f", rank {rank}" if rank is not None else ""
    out.print(Text(f"changed, estimated from measured sizes{of}", style="bold"))
    for one in answers:
        where = f", in {one.phase}" if one.phase else ""
        out.print(Text(f"  {one.change:<20} peak {_peak_range(one)}{where}; {_time_range(one)}"))
        for line in (*one.notes, *dict.fromkeys(one.reasons.values())):
            print_indented(out, Text(printable(line), style="dim"), first="    ", indent="    ")


def _peak_range(one: "MemoryWhatIf") -> str:
    if one.peak_low_bytes is None or one.peak_high_bytes is None or one.measured_bytes is None:
        return "unknown"
    low, high = map(readable_bytes, (one.peak_low_bytes, one.peak_high_bytes))
    return f"{readable_bytes(one.measured_bytes)} -> {high if low == high else f'{low} to {high}'}"


def _time_range(one: "MemoryWhatIf") -> str:
    if one.extra_low_ns is None:
        return "time unknown"
    low, high = (None if ns is None else f"{ns / NS_PER_MS:+.3g}" for ns in (one.extra_low_ns, one.extra_high_ns))
    if high is None:
        return f"at least {low} ms per step"
    return f"{low if low == high else f'{low} to {high}'} ms per step"


def _print_moments(peak: "Moment", end: "Moment", reasons: dict[str, str], out: Console) -> None:
    out.print(Text(f"  {'':<22} {'peak':>10} {'end':>10}", style="dim"))
    for name in peak.by_purpose:
        sizes = (peak.by_purpose[name], end.by_purpose[name])
        if any(sizes) or None in sizes:
            out.print(f"  {category_name(name):<22} {_size(sizes[0]):>10} {_size(sizes[1]):>10}")
    out.print(f"  {'allocated':<22} {_size(peak.allocated_bytes):>10} {_size(end.allocated_bytes):>10}")
    out.print(f"  {'reserved':<22} {_size(peak.reserved_bytes):>10} {_size(end.reserved_bytes):>10}")
    for name in peak.by_purpose:
        if name in reasons:
            print_indented(out, Text(f"{category_name(name)}: {reasons[name]}", style="dim"), indent="  ")


def _print_free(view: "SnapshotView", out: Console) -> None:
    if view.fragmentation is None:
        out.print("nothing is free in the segments")
        return
    free, largest, unused = map(readable_bytes, (view.free_bytes, view.largest_free_bytes, view.unused_segment_bytes))
    out.print(
        f"free in segments {free}, the largest piece {largest} (fragmentation {view.fragmentation:.2f}); "
        f"{unused} in segments that hold nothing"
    )
    if view.gaps:
        gaps = ", ".join(readable_bytes(g.size_bytes) for g in view.gaps)
        out.print(f"largest gaps between tensors: {gaps}")


def _print_parts(parts: dict[str, int | None], reasons: dict[str, str], out: Console) -> None:
    for name, size in parts.items():
        out.print(f"  {category_name(name):<27} {_size(size):>10}")
    for name, size in parts.items():
        if size is None and name in reasons:
            print_indented(out, Text(f"{category_name(name)}: {reasons[name]}", style="dim"), indent="  ")


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else readable_bytes(size_bytes)
