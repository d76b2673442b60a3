"""The search for the modules that a loop calls: found behind many other calls, and given up for good when too many."""

import sys

import pytest
import torch

from stepscope.record.loop import call_search
from stepscope.record.loop.call_search import CallSearch

MODEL = torch.nn.Identity()


def step(search: CallSearch, calls: int) -> None:
    search.resume()
    sorted(range(calls), key=lambda i: -i)
    MODEL(torch.ones(1))
    search.pause()


def test_model_behind_many_calls_is_found_after_some_steps() -> None:
    found: list[torch.nn.Module] = []
    search = CallSearch(found.append)
    step(search, 100)
    assert found.pop() is MODEL and not found
    for _ in range(3):  # 20,000 and 80,000 calls are too few, 320,000 are not
        step(search, 100_000)
    assert found == [MODEL]


def test_search_ends_where_it_never_finds_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_search, "_MAX_CALLS", 100_000)
    search = CallSearch(lambda _: None)
    watched = []
    for _ in range(4):
        search.resume()
        watched.append(sys.getprofile() is not None)
        sorted(range(90_000), key=lambda i: -i)
        search.pause()
    assert watched == [True, True, False, False]
