"""What each command takes: its help text, which is the module's docstring, and `add_arguments(parser)`.

The modules here have the names of the commands in `cli`. They import no table, no analysis and no renderer, so that
`--help` and a wrong argument are answered at once; `cli/NAME.py` with `run(args)` is imported after that. Names and
defaults that the help shows come from light modules too. `late` is for commands with several kinds (`bench WHAT`),
`given_run` and `given_command` are shared by commands that take a run.
"""
