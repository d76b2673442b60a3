"""Former place of `stepscope.cli.progress`."""
