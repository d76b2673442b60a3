"""Former place of the types in `stepscope.cli.arguments`, for `stepscope.cli.arguments.bench`."""

from stepscope.cli.arguments import ExtendWorldSizes, above_zero, at_least_one, at_least_zero, size_bytes, world_sizes

__all__ = ["ExtendWorldSizes", "above_zero", "at_least_one", "at_least_zero", "size_bytes", "world_sizes"]
