"""What a report states: the sentence that opens every rendering, its numbers as text, and checks for contradictions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from stepscope.contract.names import PART_OF_FAULT, PARTS
from stepscope.records import dataclass
from stepscope.run.core_time import STARVED
from stepscope.units import printable, readable_bytes

#: share of a saving that its range must reach for one number to stand for it
_CLEAR = 0.5
# of a saving that is sure: less counts as nothing
_SURELY = 0.05
# of the step, in percent: a saving that opens the report whatever its range, and a part that was to be examined
_LARGE_PCT = 10.0
# the same of a line that is not part of the training step
_LARGE_LINE_PCT = 5.0
# parts of the budget in which the device waits for a reason that could be removed
_WAITS = ("exposed_transfer", "wait", "pipeline_bubble", "copy", "data_loading", "host_sync", "allocator", "host_stall")


def headline_sentence(document: Mapping[str, Any]) -> str:
    """Return the first finding with the step before and after its fix, from the report's document.

    Rank 2 holds up everyone. Fixing it: 69.0 → 22.3 ms per step (−68 %)

    Where the recording cannot prove what the largest part of the step is, that comes first.
    """
    recording = document.get("recording") or {}
    found = [f for f in document["findings"] if f["saving_alone_ms"] > 0]
    first = next(iter(leading_findings(found)), None)
    step_ms, whole = document["step"]["unprofiled_ms"] or document["step"]["profiled_ms"], _whole(document)
    if document["verdict"] == "unclear" and (recording.get("cannot_show") or first is None):
        reason = f"{document['verdict_reason'][:1].upper()}{document['verdict_reason'][1:]}."
        return f"{reason} Fix 1 {_could_save(found[0], step_ms, whole)}" if found and first is None else reason
    missing = _missing_ranks(document["run"])
    if first is None and (held := unexplained(document)):
        return f"No sure fix was found for {' and '.join(held[:2])}.{missing}"
    if first is None and found:
        return f"No fix is sure to save anything ({document['verdict']}).{missing}"
    if first is None:
        limits = "; ".join(recording.get("cannot_show") or ())
        shown = f" Not shown: {limits}." if limits else ""
        unexamined = _large_unexamined(document)
        among = " in what was examined" if unexamined else ""
        return f"Nothing worth fixing was found{among} ({document['verdict']}).{missing}{unexamined}{shown}"
    saving_ms = first["saving_alone_ms"]
    if is_bound(first) or first["saving_low_ms"] < _CLEAR * saving_ms:  # one number would claim too much
        saves = _could_save(first, step_ms, whole)
    elif step_ms:
        places = places_of(step_ms)
        left = max(0.0, round(step_ms, places) - round(saving_ms, places))  # of what is shown, so that it adds up
        percent = f"(−{100 * saving_ms / step_ms:.0f} %)"  # noqa: RUF001
        saves = f"{three_digits(step_ms)} → {left:,.{places}f} ms per {whole} {percent}"
    else:
        saves = f"saves {saving_text(first, None)} ms per {whole}"
    verb = "Fixing it" if saves.startswith("could") else "Fixing it:"
    larger = _larger_bound(found, first, step_ms)
    end = "." if missing or larger else ""
    return f"{_subject(first, document['run']['num_ranks'])}. {verb} {saves}{end}{larger}{missing}"


def unexplained(document: Mapping[str, Any]) -> list[str]:
    """Return the waits and lines that hold so much of the step that "nothing to fix" would be wrong."""
    whole, parts = _whole(document), (document["step"] or {}).get("budget") or ()
    waits = sorted((p for p in parts if p["part"] in _WAITS and p["pct"] >= _LARGE_PCT), key=lambda p: -p["pct"])
    is_training = (document.get("recording") or {}).get("kind") == "training"
    lines = [
        line
        for line in document.get("costly_lines") or ()
        if is_training and line["trains"] is False and (line["pct"] or 0.0) >= _LARGE_LINE_PCT
    ]
    return [
        *(f"{line['file']}:{line['line']} ({line['pct']:.0f} % of the {whole})" for line in lines),
        *(f"{PARTS[p['part']]} ({p['pct']:.0f} % of the {whole})" for p in waits),
    ]


def _larger_bound(found: Iterable[Mapping[str, Any]], first: Mapping[str, Any], step_ms: float | None) -> str:
    """Return the upper bound that exceeds the first finding's saving, as a sentence: the first counts on more."""
    larger = next((f for f in found if is_bound(f) and f["saving_alone_ms"] > first["saving_alone_ms"]), None)
    return "" if larger is None else f" {_subject(larger, 0)} ({saving_text(larger, step_ms)} ms)."


def _could_save(finding: Mapping[str, Any], step_ms: float | None, whole: str) -> str:
    of = f" of {three_digits(step_ms)}" if step_ms else ""
    return f"could save {saving_text(finding, step_ms)}{of} ms per {whole} ({likely_text(finding, step_ms)})"


def leading_findings(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the findings that surely save something, or whose saving is large."""
    return [f for f in findings if f["saving_low_ms"] > _SURELY * f["saving_alone_ms"] or f["saving_pct"] >= _LARGE_PCT]


def saving_text(finding: Mapping[str, Any], step_ms: float | None) -> str:
    """Return a saving in ms.

    >>> saving_text({"saving_alone_ms": 4.54, "at_most": True}, 26.0)
    'at most 4.5'
    """
    return f"{'at most ' * is_bound(finding)}{time_text(finding['saving_alone_ms'], step_ms)}"


def likely_text(finding: Mapping[str, Any], step_ms: float | None, unit: str = "") -> str:
    """Return the likely range of a saving: only its lower end where the saving is an upper bound.

    >>> likely_text({"saving_alone_ms": 4.54, "saving_low_ms": 1.4, "saving_high_ms": 4.54, "at_most": True}, 26.0)
    'likely ≥ 1.4'
    >>> likely_text({"saving_alone_ms": 4.54, "saving_low_ms": 0.1, "saving_high_ms": 9.1}, 26.0, " ms")
    'likely 0–9.1 ms'
    """
    low, high = finding["saving_low_ms"], min(finding["saving_high_ms"], step_ms or finding["saving_high_ms"])
    is_sure = low > _SURELY * finding["saving_alone_ms"]
    if is_bound(finding):
        return f"likely ≥ {two_digits(low)}{unit}" if is_sure else "maybe nothing"
    most = two_digits(high) if float(f"{high:.2g}") >= finding["saving_alone_ms"] else three_digits(high)
    return f"likely {two_digits(low) if is_sure else '0'}–{most}{unit}"  # noqa: RUF001


def fact_text(fact: Mapping[str, Any], step_ms: float | None) -> str:
    """Return one fact of a finding's evidence; everything on a screen is per step."""
    value = fact["value"]
    text = str(value)
    if isinstance(value, int | float):
        text = three_digits(value) if value != int(value) else f"{value:,.0f}"
        text = time_text(value, step_ms) if fact["unit"] == "ms" else text
    if fact["unit"] == "bytes" and isinstance(value, int | float):
        return printable(f"{fact['what']}: {readable_bytes(int(value))}")
    joint = " " if fact["what"].endswith(" in") else ": "
    what = fact["what"].replace(", per step", "").removesuffix(" per step")
    return printable(f"{what}{joint}{text} {fact['unit']}".rstrip())


def together_text(document: Mapping[str, Any], count: int, step_ms: float | None) -> tuple[str, float] | None:
    """Return what the first fixes save together, and in words whether that is the sum; None where nothing is left."""
    saved = document["findings_combined"][count - 1]["saving_ms_per_step"]
    if saved >= 0.99 * (step_ms or 0.0):  # estimates that exceed the step are no joint saving
        return None
    alone = sum(f["saving_alone_ms"] for f in [f for f in document["findings"] if f["saving_alone_ms"] > 0][:count])
    note = " (they overlap)" if saved < 0.995 * alone else " (more than their sum)" if saved > 1.005 * alone else ""
    return f"Fixes 1–{count} together{note}", saved  # noqa: RUF001


def serving_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the steps, requests and tokens of each kind of serving."""
    serving = document.get("serving") or {"kinds": ()}
    lines = []
    for kind in serving["kinds"]:
        name, steps = printable(kind["kind"], width=20), f"{kind['steps']:,} step{'s' * (kind['steps'] != 1)}"
        parts = [f"{name}: {steps} of {three_digits(kind['step_ms'])} ms"]
        counts = ((one, kind[f"{one}s_per_step"]) for one in ("request", "token"))
        parts += [f"{round(n):,} {one}{'s' * (round(n) != 1)}" for one, n in counts if n is not None]
        rate = "" if kind["tokens_per_s"] is None else f" ({kind['tokens_per_s']:,.0f} tokens/s)"
        lines.append(", ".join(parts) + rate)
    if serving.get("generated_per_s"):
        lines.append(f"generated {serving['generated_per_s']:,.0f} tokens/s")
    return lines


def capital(text: str) -> str:
    """Return a text that begins with a capital letter, unless it begins with the name of a file."""
    return text if "." in text.split(" ")[0][:-1] else text[:1].upper() + text[1:]


def is_bound(finding: Mapping[str, Any]) -> bool:
    """Return whether a saving is an upper bound: training may need the work."""
    return bool(finding.get("at_most"))


def time_text(time_ms: float, step_ms: float | None) -> str:
    """Return a part of the step with as many decimals as the step, so that shown times add up; at least two digits.

    >>> time_text(86.01, 100.4), time_text(5.67, 251.0), time_text(1.234, 26.0)
    ('86', '5.7', '1.2')
    """
    return f"{time_ms:,.{places_of(time_ms) if step_ms is None else max(places_of(step_ms), places_of(time_ms) - 1)}f}"


def three_digits(value: float) -> str:
    """Return a number with at most three significant digits, whole numbers in full.

    >>> three_digits(69.04), three_digits(2.954), three_digits(1234.5), three_digits(0.0312)
    ('69.0', '2.95', '1,234', '0.031')
    """
    return f"{value:,.{places_of(value)}f}"


def places_of(value: float) -> int:
    """Return the decimals that make three digits."""
    size = abs(value)
    return 0 if size >= 99.95 else 1 if size >= 9.995 else 2 if size >= 0.9995 else 3


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
    return capital(title)


def _large_unexamined(document: Mapping[str, Any]) -> str:
    """Return the faults that were not examined although what they would explain is a large part of the step."""
    pct = {row["part"]: row["pct"] for row in (document["step"] or {}).get("budget") or ()}
    rules = [one["rule"] for one in document["not_examined"]]
    rules = [rule for rule in rules if (pct.get(PART_OF_FAULT.get(rule, "")) or 0) >= _LARGE_PCT]
    named = (f"{rule}, up to {pct[PART_OF_FAULT[rule]]:.0f} % of the {_whole(document)}" for rule in rules)
    return f" Not examined: {'; '.join(named)}." if rules else ""


def _whole(document: Mapping[str, Any]) -> str:
    return "step" if document["run"]["num_steps"] else "window"


def _missing_ranks(run: Mapping[str, Any]) -> str:
    read, world = run["num_ranks"], run["world_size"]
    return f" Only {read} of {world} ranks {'was' if read == 1 else 'were'} recorded." if world and read < world else ""


# Does the finished report contradict itself? Checks on the document, before any rendering.
#
#     sums         parts sum to the step, losses to the peak; no rank's time exceeds its window
#     basis        no line, cause, segment or lateness exceeds the step: all are of the same step
#     savings      a saving is within its range, its cost and the step, and leaves what its fix does not touch
#     waits        the fixes of a wait save as much of it as they claim to remove
#     evidence     no evidence of nothing, none of the step above it; no bound by memory without a known transfer
#     joint        findings are in the order of what can be counted on, and joint savings are the sums of what each adds
#     lines        a line saves the same in its finding, in `code` and among the costly lines
#     starved      the wait for a core that an overloaded machine is said to cause is large, and no saving contains it
#     headline     the verdict gives the first finding's saving, and "nothing to fix" is not above a wait or line
#
# What contradicts is withheld: the number, the saving, or the verdict; the range of a saving is widened to the wait.
# `contradictions` of the document lists it, and a warning gives the reason. Sound analyses contradict nothing: tests
# and the fuzzer fail on a document that does.

Json = dict[str, Any]
Place = tuple[str | int, ...]

# what rounding may change: of a time, and in ms
_SLACK, _SLACK_MS = 1e-3, 2e-3
# of the step: by as much may two replays of the same line differ
_SAME = 0.02
# of a wait that a fix removes: less is a contradiction
_MOST_OF_A_WAIT = 0.5
# of the step, in percent: a saving that the verdict is about, and a wait that its fixes have to account for
_AMOUNTS = ("ms", "bytes", "copies", "calls")
_COMPUTE = ("forward", "backward", "optimizer", "other_compute")
_BUSY = (*_COMPUTE, "copy", "exposed_transfer")
# parts of the budget that the fix of a finding leaves as they are: it saves no more than the rest
_NOT_REMOVED = {
    "data-loading": _BUSY,
    "host-device-sync": _BUSY,
    "allocator": _BUSY,
    "launch-overhead": _BUSY,
    "host-stall": (*_COMPUTE, "exposed_transfer"),
    "no-overlap": (*_COMPUTE, "copy"),
    "communication-bound": (*_COMPUTE, "copy"),
    "too-many-small-collectives": (*_COMPUTE, "copy"),
    "pipeline-bubble": (*_COMPUTE, "copy"),
}
_OF_A_RANK = ("compute_ms", "comm_ms", "memory_ms", "exposed_comm_ms", "idle_ms", "wait_ms", "transfer_ms")
_OF_A_FINDING = ("saving_ms_per_step", "saving_low_ms", "saving_high_ms", "saving_pct", "saving_alone_ms")


@dataclass(frozen=True)
class Contradiction:
    """A number or sentence that another one of the same document rules out."""

    check: str
    what: str
    #: what is withheld, as keys and indices from the document
    place: Place


def consistent(document: Json) -> Json:
    """Return the document without what contradicts the rest of it; `contradictions` has what was withheld."""
    found: list[Contradiction] = []
    while (one := next(contradictions(document), None)) is not None and one not in found:
        found.append(one)
        _withhold(document, one)
    document["contradictions"] = [{"check": one.check, "what": one.what} for one in found]
    document["warnings"] += [f"Corrected, because the report contradicted itself: {one.what}" for one in found]
    return document


def contradictions(document: Mapping[str, Any]) -> Iterator[Contradiction]:
    """Yield everything that another part of the document rules out."""
    for check in (_sums, _basis, _savings, _evidence, _joint, _waits, _lines, _starved, _headline):
        for place, what in check(document):
            yield Contradiction(check.__name__.removeprefix("_"), what, place)


def _withhold(document: Json, found: Contradiction) -> None:
    *path, last = found.place
    parent: Any = document
    key: Any
    for key in path:
        parent = parent[key]
    if found.place[0] == "verdict":
        document |= {"verdict": "unclear", "verdict_reason": found.what}
    elif found.check == "joint":
        _add_up(document)
    elif path == ["findings"]:
        parent[last] |= {**dict.fromkeys(_OF_A_FINDING, 0.0), "what_if": []}
        _add_up(document)
    elif found.check == "evidence" and path[-1] == "evidence" and parent[last]["value"] > 0:
        parent[last] |= {"value": "unknown", "unit": ""}
    elif found.check == "waits":
        parent[last] = _parts(document)[PART_OF_FAULT[parent["id"]]]
    elif isinstance(parent, list) and isinstance(last, int):
        del parent[last]
    else:
        parent[last] = [] if isinstance(parent[last], list) else None


def _add_up(document: Json) -> None:
    """Sort the findings, and make the joint savings the sum of what each adds, at most the step."""
    document["findings"].sort(key=lambda f: -_counted_ms(f))
    ids: list[str] = []
    saved, rows = 0.0, []
    for f in document["findings"]:
        adds = min(f["saving_ms_per_step"] if ids else f["saving_alone_ms"], (_step_ms(document) or 0.0) - saved)
        f["saving_ms_per_step"] = max(0.0, adds)
        saved += f["saving_ms_per_step"]
        ids.append(f["id"])
        rows.append({"ids": [*ids], "saving_ms_per_step": saved})
    document["findings_combined"] = rows


def _counted_ms(finding: Mapping[str, Any]) -> float:
    return float(finding["saving_low_ms" if is_bound(finding) else "saving_alone_ms"])


def _step_ms(document: Mapping[str, Any]) -> float | None:
    step = document["step"]
    known = step["unprofiled_ms"] if step["unprofiled_ms"] is not None else step["profiled_ms"]
    return None if known is None else float(known)


def _within(value: float, most: float) -> bool:
    return value <= most * (1 + _SLACK) + _SLACK_MS


def _parts(document: Mapping[str, Any]) -> dict[str, float]:
    return {p["part"]: p["ms_per_step"] for p in document["step"]["budget"] or ()}


# The checks, in the order of the table above.


def _sums(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    step_ms, parts = _step_ms(document), document["step"]["budget"]
    if parts and step_ms is not None:
        total = sum(p["ms_per_step"] for p in parts)
        wrong = [p for p in parts if p["ms_per_step"] < 0 or abs(p["pct"] - 100 * p["ms_per_step"] / step_ms) > 0.1]
        if wrong or not (_within(total, step_ms) and _within(step_ms, total)):
            yield ("step", "budget"), f"the parts of the step sum to {total:.3f} ms, the step is {step_ms:.3f}"
    lost = [row["pct_of_peak"] for row in document["waterfall"] or ()]
    if lost and (abs(sum(lost) - 100) > 0.5 or min(lost) < 0):
        yield ("waterfall",), f"the losses sum to {sum(lost):.2f} % of the peak"
    for i, rank in enumerate(document["ranks"]):
        yield from _of_rank(rank, ("ranks", i))
    used = document["efficiency"]
    for key in ("mfu", "hfu"):
        if used[key] is not None and not 0 <= used[key] <= 1:
            yield ("efficiency", key), f"{key.upper()} is {used[key]}"
    if used["mfu"] is not None and used["hfu"] is not None and not _within(used["mfu"], used["hfu"]):
        yield ("efficiency", "hfu"), f"MFU {used['mfu']} is above HFU {used['hfu']}"


def _of_rank(rank: Mapping[str, Any], place: Place) -> Iterator[tuple[Place, str]]:
    name, window = f"rank {rank['rank']}", rank.get("window_ms")
    known = {key: rank[key] for key in _OF_A_RANK if rank.get(key) is not None}
    comm = known.get("comm_ms")
    for key, value in known.items():
        if value < 0 or (window is not None and not _within(value, window)):
            yield (*place, key), f"{name}: {key} is {value} in a window of {window}"
        elif key in ("exposed_comm_ms", "wait_ms", "transfer_ms") and comm is not None and not _within(value, comm):
            yield (*place, key), f"{name}: {key} is {value} of {comm} ms of communication"
    both = known.get("wait_ms", 0.0) + known.get("transfer_ms", 0.0)  # what no other rank matches is neither
    if comm is not None and not _within(both, comm):
        yield (*place, "transfer_ms"), f"{name}: waits and transfers are {both} of {comm} ms of communication"
    if rank.get("overlap_pct") is not None and not 0 <= rank["overlap_pct"] <= 100:
        yield (*place, "overlap_pct"), f"{name}: {rank['overlap_pct']} % of communication is hidden"


def _basis(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    step_ms = _step_ms(document)
    if step_ms is None:
        return
    tables = {
        "costly_lines": "critical_ms",
        "critical_path": "ms_per_step",
        "idle": "ms_per_step",
        "waterfall": "ms_per_step",
    }
    for table, key in tables.items():
        for i, row in enumerate(document.get(table) or ()):
            if row[key] is not None and not _within(row[key], step_ms):
                yield (table, i), f"{table} has {row[key]:.3f} ms in a step of {step_ms:.3f}"
    total = sum(line["critical_ms"] for line in document.get("costly_lines") or ())
    if not _within(total, step_ms):
        yield ("costly_lines",), f"lines hold {total:.3f} ms of the critical path of a step of {step_ms:.3f}"
    for i, row in enumerate(document.get("code") or ()):
        for key in ("host_ms", "own_host_ms", "saving_ms"):
            if row[key] is not None and not _within(row[key], step_ms):
                yield ("code", i), f"{row['file']}:{row['line']} has {row[key]:.3f} ms in a step of {step_ms:.3f}"
    longest = max((ms for rank in document["ranks"] for ms in rank["step_ms"] or ()), default=0.0)
    for i, late in enumerate(document["stragglers"]):
        if late["late_ms_per_step"] <= 0 or not _within(late["late_ms_per_step"], max(longest, step_ms)):
            yield (
                ("stragglers", i),
                f"rank {late['rank']} is {late['late_ms_per_step']} ms late in a step of {step_ms:.3f}",
            )


def _savings(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    step_ms, parts = _step_ms(document), _parts(document)
    on_device = any(rank["compute_ms"] for rank in document["ranks"]) and document["run"]["device"] != "CPU"
    for i, f in enumerate(document["findings"]):
        place, saved, cost = ("findings", i), f["saving_alone_ms"], f["cost_ms_per_step"]
        if not saved and not f["saving_high_ms"]:
            continue
        if step_ms is None:
            yield place, f"{f['id']} saves {saved} ms of a step that is not known"
            continue
        if cost is not None and not (_within(cost, step_ms) and _within(saved, cost)):
            yield place, f"{f['id']} costs {cost} and saves {saved} of {step_ms:.3f} ms"
        if not (f["saving_low_ms"] >= 0 and _within(f["saving_low_ms"], saved) and _within(saved, f["saving_high_ms"])):
            yield place, f"{f['id']} saves {saved} ms, likely {f['saving_low_ms']} to {f['saving_high_ms']}"
        if not _within(max(f["saving_high_ms"], f["saving_ms_per_step"]), step_ms):
            yield place, f"{f['id']} saves up to {f['saving_high_ms']} of {step_ms:.3f} ms"
        if abs(f["saving_pct"] - 100 * saved / step_ms) > 0.1:
            yield place, f"{f['id']} saves {saved} ms, {f['saving_pct']} % of {step_ms:.3f}"
        # A line that is removed may take the device's work with it.
        left = _NOT_REMOVED.get(f["id"]) if on_device and not f["where"] else None
        if left and not _within(saved, step_ms - sum(parts.get(name, 0.0) for name in left)):
            yield place, f"{f['id']} saves {saved} ms of a step of {step_ms:.3f} less {', '.join(left)}"


def _waits(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    parts, step_ms, found = _parts(document), _step_ms(document) or 0.0, document["findings"]
    together = max((row["saving_ms_per_step"] for row in document["findings_combined"]), default=0.0)
    for i, f in enumerate(found):
        wait_ms = parts.get(PART_OF_FAULT.get(f["id"], ""), 0.0)
        saved = max(together, sum(one["saving_high_ms"] for one in found if one["id"] == f["id"]))
        is_large = 100 * wait_ms >= _LARGE_PCT * step_ms and f["id"] != "launch-overhead"  # hidden by device work
        if f["saving_alone_ms"] > 0 and is_large and saved < _MOST_OF_A_WAIT * wait_ms:
            yield (
                ("findings", i, "saving_high_ms"),
                f"{f['id']} saves at most {saved:.3f} of the {wait_ms:.3f} ms that it removes",
            )


def _evidence(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    step_ms = _step_ms(document)
    for i, f in enumerate(document["findings"]):
        if f["saving_alone_ms"] > 0 and not f["evidence"]:
            yield ("findings", i), f"{f['id']} has no evidence"
        for n, fact in enumerate(f["evidence"]):
            value, unit = fact["value"], fact["unit"]
            if not isinstance(value, int | float) or unit not in _AMOUNTS:
                continue
            if value <= 0:
                yield ("findings", i, "evidence", n), f"{f['id']}: {fact['what']} is {value} {unit}"
            elif unit == "ms" and step_ms is not None and fact.get("of_step", True) and not _within(value, step_ms):
                yield ("findings", i, "evidence", n), f"{f['id']}: {fact['what']} is {value} ms of {step_ms:.3f}"
    if document["verdict"] == "memory-bound" and not document.get("serving"):
        bound = [k for k in document["kernels"] if k["bound"] == "memory-bound" and k["family"] != "communication"]
        if bound and all(k["bound_from"] == "family" for k in bound):
            yield (
                ("verdict",),
                "what the kernels read and write is not known, so what bounds their compute is not known",
            )


def _joint(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    found, rows = document["findings"], document["findings_combined"]
    counted = [_counted_ms(f) for f in found]
    if counted != sorted(counted, reverse=True):
        yield ("findings_combined",), "findings are not in the order of what can be counted on"
    saved, step_ms = 0.0, _step_ms(document)
    for i, (f, row) in enumerate(zip(found, rows, strict=False)):
        adds = f["saving_ms_per_step"] if i else f["saving_alone_ms"]
        saved += adds
        if (
            row["ids"] != [one["id"] for one in found[: i + 1]]
            or abs(row["saving_ms_per_step"] - saved) > 1e-3 * saved + 0.01
        ):
            yield (
                ("findings_combined",),
                f"fixes 1 to {i + 1} together save {row['saving_ms_per_step']}, each {saved:.3f} ms",
            )
        if step_ms is not None and not _within(row["saving_ms_per_step"], step_ms):
            yield ("findings_combined",), f"fixes 1 to {i + 1} save {row['saving_ms_per_step']} of {step_ms:.3f} ms"


def _lines(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    claimed = {
        f["what_if"][1]: f for f in document["findings"] if len(f["what_if"]) == 2 and f["what_if"][0] == "--without"
    }
    step_ms = _step_ms(document) or 0.0
    for table in ("code", "costly_lines"):
        for i, row in enumerate(document.get(table) or ()):
            f = claimed.get(f"{row['file']}:{row['line']}")
            if f and row["saving_ms"] is not None and abs(row["saving_ms"] - f["saving_alone_ms"]) > _SAME * step_ms:
                says = f"{row['saving_ms']:.3f} ms in {table} and {f['saving_alone_ms']:.3f} in {f['id']}"
                yield (table, i, "saving_ms"), f"{row['file']}:{row['line']} saves {says}"


def _starved(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    step_ms, waited_ms = _step_ms(document), document["step"]["core_wait_ms"] or 0.0
    if not document["step"]["starved"]:
        return
    if step_ms is None or not _within(STARVED * (step_ms + waited_ms), waited_ms):
        yield ("step", "starved"), f"training waits for a core for {waited_ms:.3f} ms per step, which is little"
    for i, f in enumerate(document["findings"]):
        if f["saving_cpu_ms"] is not None and not _within(f["saving_cpu_ms"], f["saving_alone_ms"]):
            yield ("findings", i, "saving_cpu_ms"), f"{f['id']} saves more with a core than without one"


def _headline(document: Mapping[str, Any]) -> Iterator[tuple[Place, str]]:
    found, verdict = document["findings"], document["verdict"]
    sentence, held = headline_sentence(document), unexplained(document)
    is_silent = verdict != "unclear" and not leading_findings(f for f in found if f["saving_alone_ms"] > 0)
    if is_silent and held and held[0] not in sentence:
        yield ("verdict",), f"no sure fix was found for {held[0]}"
    first = next((f for f in found if f["saving_pct"] >= _LARGE_PCT), None)
    if first is not None and verdict != "unclear" and f"{first['saving_pct']:.0f} %" not in document["verdict_reason"]:
        yield ("verdict",), f"{first['title']}: {first['saving_pct']:.0f} %"
