"""Sequences that are nearly the same are laid beside each other, whatever was put in or left out."""

import random

import numpy as np
import pytest

from stepscope.analyze.match_owners import NOTHING, Tries, aligned


def longest_common(a: list[int], b: list[int]) -> int:
    row = [0] * (len(b) + 1)
    for x in a:
        before = row
        row = [0]
        for j, y in enumerate(b):
            row.append(before[j] + 1 if x == y else max(before[j + 1], row[j]))
    return row[-1]


def changed(values: list[int], rng: random.Random, edits: int, alphabet: int) -> list[int]:
    out = list(values)
    for _ in range(edits):
        if out and rng.random() < 0.5:
            del out[rng.randrange(len(out))]
        else:
            out.insert(rng.randrange(len(out) + 1), rng.randrange(alphabet))
    return out


@pytest.mark.parametrize("seed", range(40))
def test_as_many_are_matched_as_can_be(seed: int) -> None:
    rng = random.Random(seed)
    known = [rng.randrange(6) for _ in range(rng.randrange(60))]
    wanted = changed(known, rng, rng.randrange(8), 6)
    at = aligned(np.array(wanted, np.int64), np.array(known, np.int64))
    matched = at[at != NOTHING]
    assert (np.diff(matched) > 0).all()
    assert all(wanted[i] == known[j] for i, j in enumerate(at.tolist()) if j != NOTHING)
    assert len(matched) == longest_common(wanted, known)


def test_sequences_with_nothing_in_common_end_with_the_tries() -> None:
    rng = np.random.default_rng(1)
    tries = Tries(10_000)
    at = aligned(rng.integers(0, 1000, 20_000), rng.integers(0, 1000, 20_000), tries)
    assert tries.left < 1_000
    assert (at != NOTHING).mean() < 0.5
