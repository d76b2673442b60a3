"""Traces damaged at random: bytes, cuts, pieces copied and moved, numbers blown up, compressed and cut again."""

import re
from collections.abc import Iterator
from random import Random
from typing import Any

from tools.fuzz.case import Case, seed
from tools.fuzz.seeds import LARGER_TRACES, OUTPUTS, TRACES, any_command, seed_text
from tools.fuzz.values import VALUES

_NUMBER = re.compile(rb"-?\d+(\.\d+)?")
_TOKENS = ("[", "]", "{", "}", '"', ",", ":", "\\", "\x00", "\n", "\xff", "\xef\xbb\xbf", '"args":{', '"ph":"X",', "]}")


def mutated_traces(rng: Random) -> Iterator[Case]:
    """Yield traces with one to four random changes."""
    while True:
        name = rng.choice(LARGER_TRACES if rng.random() < 0.03 else TRACES)
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
