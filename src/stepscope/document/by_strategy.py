"""What each dimension of parallelism cost, as keys of the report's JSON. Times in milliseconds; unknown is null."""

from collections.abc import Collection, Mapping
from typing import Any

from stepscope.analyze.account import Account
from stepscope.document.plain_values import in_ms, plain

_TRAFFIC = ("time", "exposed", "wait", "transfer")
TIMES: Mapping[str, Mapping[str, Collection[str]]] = {
    "buckets": {
        "buckets": ("ready", *_TRAFFIC),
        "ranks": (*_TRAFFIC, "backward", "first_delay", "tail", "hook_host", "hook_device"),
    },
    "sharding": {
        "ranks": (
            *("gather", "gather_exposed", "gather_wait"),
            *("scatter", "scatter_exposed", "scatter_wait"),
        )
    },
    "tensor_parallel": {"layers": ("time", "exposed", "wait", "compute"), "ranks": _TRAFFIC},
    "pipeline": {
        "ranks": (
            *("step", "forward", "backward", "other", "transfer", "wait", "gaps", "idle"),
            *("send", "receive", "exchange", "forward_microbatch", "backward_microbatch"),
        )
    },
    "experts": {"ranks": _TRAFFIC},
    "context_parallel": {"ranks": (*_TRAFFIC, "compute")},
}
"""by view: its lists of records, and which fields of those are times"""


def by_strategy_json(account: Account) -> dict[str, Any]:
    """Return the strategy and a view of each of its dimensions, null for those the run does not have."""
    strategy, views = account.strategy, account.views
    return {
        "name": strategy.name,
        "sure": strategy.sure,
        "dimensions": plain(strategy.dimensions),
        "other": plain(strategy.other),
        **{name: _view(getattr(views, name), times) for name, times in TIMES.items()},
    }


def _view(view: Any, times: Mapping[str, Collection[str]]) -> dict[str, Any] | None:
    if view is None:
        return None
    return {name: _part(name, value, times) for name, value in vars(view).items()}


def _part(name: str, value: Any, times: Mapping[str, Collection[str]]) -> Any:
    if name == "over_ranks":
        return in_ms(value, times["ranks"])
    return [in_ms(record, times[name]) for record in value] if name in times else plain(value)
