"""The command line of the laboratory: one module per command."""
