"""Does the finished report contradict itself? Checks on the document, before any rendering.

    sums         parts sum to the step, losses to the peak; no rank's time exceeds its window
    basis        no line, cause, segment or lateness exceeds the step: all are of the same step
    savings      a saving is within its range, its cost and the step, and leaves what its fix does not touch
    waits        the fixes of a wait save as much of it as they claim to remove
    evidence     no evidence of nothing, none of the step above it; no bound by memory without a known transfer
    joint        findings are in the order of what can be counted on, and joint savings are the sums of what each adds
    lines        a line saves the same in its finding, in `code` and among the costly lines
    starved      the wait for a core that an overloaded machine is said to cause is large, and no saving contains it
    headline     the verdict gives the first finding's saving, and "nothing to fix" is not above a wait or line

What contradicts is withheld: the number, the saving, or the verdict; the range of a saving is widened to the wait.
`contradictions` of the document lists it, and a warning gives the reason. Sound analyses contradict nothing: tests and
the fuzzer fail on a document that does.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from stepscope.contract.names import PART_OF_FAULT
from stepscope.document.sentence import headline_sentence, is_bound, leading_findings, unexplained
from stepscope.records import dataclass
from stepscope.run.core_time import STARVED

Json = dict[str, Any]
Place = tuple[str | int, ...]

# what rounding may change: of a time, and in ms
_SLACK, _SLACK_MS = 1e-3, 2e-3
# of the step: by as much may two replays of the same line differ
_SAME = 0.02
# of a wait that a fix removes: less is a contradiction
_MOST_OF_A_WAIT = 0.5
# of the step, in percent: a saving that the verdict is about, and a wait that its fixes have to account for
_LARGE_PCT = 10.0
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
