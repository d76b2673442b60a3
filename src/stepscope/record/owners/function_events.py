"""A tree of function calls from the profiler's plain events, for a torch without an event tree: lines of definitions.

Plain events name a Python function `file.py(12): forward`, 12 being the line of its definition. They are put below each
other by time, and look like nodes of the event tree: a call's caller is then known by its definition alone.
"""

import re
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

_FUNCTION = re.compile(r"^(?P<file>[^()]+)\((?P<line>\d+)\): (?P<function>.+)$")
_BUILT_IN = "<built-in"
_MODULE = "nn.Module: "


def function_tree(events: Iterable[Any]) -> list[Any]:
    """Return the roots of a tree with the names that `event_tree` reads."""
    roots: list[Any] = []
    open_nodes: dict[int, list[Any]] = {}
    for event in sorted(events, key=lambda e: (e.start_ns(), -e.duration_ns())):
        thread, start_ns = event.start_thread_id(), event.start_ns()
        above = open_nodes.setdefault(thread, [])
        while above and above[-1].end_time_ns <= start_ns:
            above.pop()
        node = _node(event, next((n for n in reversed(above) if n.tag.name == "PyCall"), None))
        (above[-1].children if above else roots).append(node)
        above.append(node)
    return roots


def _node(event: Any, function: Any) -> Any:
    """Return one node; `function` is the Python function around it."""
    name = event.name()
    found = _FUNCTION.match(name)
    nowhere = SimpleNamespace(file_name="<unknown>", function_name="<unknown>", line_number=0)
    caller = function.extra_fields.callsite if function is not None else nowhere
    if found:
        site = SimpleNamespace(file_name=found["file"], function_name=found["function"], line_number=int(found["line"]))
        kind, fields = "PyCall", SimpleNamespace(caller=caller, callsite=site, module=None)
    elif name.startswith((_BUILT_IN, _MODULE)):
        kind, fields = "PyCCall", SimpleNamespace(caller=caller)
    else:
        annotation = "USER_SCOPE" if _is_annotation(event) else "FUNCTION"
        kind = "TorchOp"
        fields = SimpleNamespace(sequence_number=event.sequence_nr(), scope=SimpleNamespace(name=annotation))
    return SimpleNamespace(
        name=name,
        tag=SimpleNamespace(name=kind),
        extra_fields=fields,
        children=[],
        start_tid=event.start_thread_id(),
        start_time_ns=event.start_ns(),
        end_time_ns=event.start_ns() + event.duration_ns(),
    )


def _is_annotation(event: Any) -> bool:
    asked = getattr(event, "is_user_annotation", None)
    return bool(asked()) if asked is not None else False
