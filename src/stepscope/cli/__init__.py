"""The command line: one file per command, each with its arguments, one call into the library and one rendering.

A command module has a docstring (its help text), `add_arguments(parser)` and `run(args) -> exit code`.
"""
