"""The command line: one file per command, with one call into the library and one rendering: `run(args) -> exit code`.

What a command takes is in the file of the same name in `arguments`: the help text and `add_arguments(parser)`.
"""
