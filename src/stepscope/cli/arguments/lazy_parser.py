"""Former place of `LazyParser`, for `stepscope.cli.arguments.bench`."""

from stepscope.cli.arguments import LazyParser

__all__ = ["LazyParser"]
