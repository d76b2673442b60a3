"""The sentence that opens every rendering of a report: what to fix first and what it saves."""

from collections.abc import Iterable, Mapping
from math import ceil, floor, log10
from typing import Any

#: share of a saving that its range must reach for one number to stand for it
_CLEAR = 0.5
# of a saving that is sure: less counts as nothing
_SURELY = 0.05
# of the step, in percent: a saving that opens the report whatever its range, and a part that was to be examined
_LARGE_PCT = 10.0
# the part of the budget that a fault explains
_PART_OF = {
    "data-loading": "data_loading",
    "launch-overhead": "launch_gap",
    "host-device-sync": "host_sync",
    "host-to-device-copy": "copy",
    "host-stall": "host_stall",
    "allocator": "allocator",
}


def headline_sentence(document: Mapping[str, Any]) -> str:
    """Return the first finding with the step before and after its fix, from the report's document.

    Rank 2 holds up everyone. Fixing it: 69.0 → 22.3 ms per step (−68 %)

    Where the recording cannot prove what the largest part of the step is, that comes first.
    """
    recording = document.get("recording") or {}
    found = [f for f in document["findings"] if f["saving_alone_ms"] > 0]
    first = next(iter(leading_findings(found)), None)
    if document["verdict"] == "unclear" and (recording.get("cannot_show") or first is None):
        return f"{document['verdict_reason'][:1].upper()}{document['verdict_reason'][1:]}."
    missing = _missing_ranks(document["run"])
    if first is None and found:
        return f"No fix is sure to save anything ({document['verdict']}).{missing}"
    if first is None:
        limits = "; ".join(recording.get("cannot_show") or ())
        shown = f" Not shown: {limits}." if limits else ""
        unexamined = _large_unexamined(document)
        among = " in what was examined" if unexamined else ""
        return f"Nothing worth fixing was found{among} ({document['verdict']}).{missing}{unexamined}{shown}"
    step_ms = document["step"]["unprofiled_ms"] or document["step"]["profiled_ms"]
    saving_ms, whole = first["saving_alone_ms"], _whole(document)
    if first["saving_low_ms"] < _CLEAR * saving_ms:  # one number would claim too much
        of = f" of {three_digits(step_ms)}" if step_ms else ""
        saves = f"could save {three_digits(saving_ms)}{of} ms per {whole} (likely {likely_range(first, step_ms)})"
    elif step_ms:
        left = max(0.0, step_ms - saving_ms)
        saves = f"{three_digits(step_ms)} → {three_digits(left)} ms per {whole} (−{100 * saving_ms / step_ms:.0f} %)"  # noqa: RUF001
    else:
        saves = f"−{three_digits(saving_ms)} ms per {whole}"  # noqa: RUF001
    verb = "Fixing it" if saves.startswith("could") else "Fixing it:"
    return f"{_subject(first, document['run']['num_ranks'])}. {verb} {saves}{'.' if missing else ''}{missing}"


def leading_findings(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the findings that surely save something, or whose saving is large."""
    return [f for f in findings if f["saving_low_ms"] > _SURELY * f["saving_alone_ms"] or f["saving_pct"] >= _LARGE_PCT]


def likely_range(finding: Mapping[str, Any], step_ms: float | None) -> str:
    """Return the likely range of a saving in ms, which is never rounded below the saving.

    >>> likely_range({"saving_alone_ms": 4.54, "saving_low_ms": 0.1, "saving_high_ms": 4.54}, 26.0)
    '0–4.6'
    """
    saving, low = finding["saving_alone_ms"], finding["saving_low_ms"]
    high = min(finding["saving_high_ms"], step_ms or finding["saving_high_ms"])
    most = two_digits(high)
    if float(most.replace(",", "")) < saving:
        unit = 10.0 ** (floor(log10(high)) - 1)
        most = two_digits(ceil(high / unit) * unit)
    return f"{two_digits(low) if low > _SURELY * saving else '0'}–{most}"  # noqa: RUF001


def three_digits(value: float) -> str:
    """Return a number with at most three significant digits, whole numbers in full.

    >>> three_digits(69.04), three_digits(2.954), three_digits(1234.5), three_digits(0.0312)
    ('69.0', '2.95', '1,234', '0.031')
    """
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{places}f}"


def joules_text(value: float) -> str:
    """Return an energy with three digits.

    >>> joules_text(0.0554), joules_text(227.2), joules_text(68_200)
    ('55.4 mJ', '227 J', '68.2 kJ')
    """
    for unit, least, size in (("MJ", 1e7, 1e6), ("kJ", 1e4, 1e3), ("J", 0.1, 1.0)):
        if value >= least:
            return f"{three_digits(value / size)} {unit}"
    return f"{three_digits(1e3 * value)} mJ"


def two_digits(value: float) -> str:
    """Return a number with two significant digits, as the ends of ranges have.

    >>> two_digits(5.67), two_digits(566.0), two_digits(0.0512)
    ('5.7', '570', '0.051')
    """
    return f"{float(f'{value:.2g}'):,.15g}"


def _subject(finding: Mapping[str, Any], num_ranks: int) -> str:
    ranks = finding["ranks"]
    if finding["id"] == "straggler" and ranks:
        others = "everyone" if num_ranks > 2 else "the other rank"
        if len(ranks) == 1:
            return f"Rank {ranks[0]} holds up {others}"
        return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} hold up {others}"
    title = finding["title"].rstrip(".")
    return title if "." in title.split(" ")[0] else title[:1].upper() + title[1:]  # file names keep their case


def _large_unexamined(document: Mapping[str, Any]) -> str:
    """Return the faults that were not examined although what they would explain is a large part of the step."""
    pct = {row["part"]: row["pct"] for row in (document["step"] or {}).get("budget") or ()}
    rules = [
        one["rule"] for one in document["not_examined"] if (pct.get(_PART_OF.get(one["rule"], "")) or 0) >= _LARGE_PCT
    ]
    named = (f"{rule}, up to {pct[_PART_OF[rule]]:.0f} % of the {_whole(document)}" for rule in rules)
    return f" Not examined: {'; '.join(named)}." if rules else ""


def _whole(document: Mapping[str, Any]) -> str:
    return "step" if document["run"]["num_steps"] else "window"


def _missing_ranks(run: Mapping[str, Any]) -> str:
    read, world = run["num_ranks"], run["world_size"]
    return f" Only {read} of {world} ranks {'was' if read == 1 else 'were'} recorded." if world and read < world else ""
