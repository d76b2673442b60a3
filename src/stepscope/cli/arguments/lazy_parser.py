"""A parser that gets its arguments late: of `stepscope bench WHAT` only the kind asked for is imported."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any


class LazyParser(argparse.ArgumentParser):
    """Lets `add` give it its description and arguments when it is asked to parse."""

    def __init__(self, *, add: Callable[[argparse.ArgumentParser], None], **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, **kwargs)
        self._add = add

    def fill(self) -> None:
        """Put description and arguments in place; once, since argparse takes no argument twice."""
        self._add(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Return what argparse returns, with all arguments in place."""
        self.fill()
        return super().parse_known_args(args, namespace)
