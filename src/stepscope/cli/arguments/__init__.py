"""What each command takes: its help text, which is the module's docstring, and `add_arguments(parser)`."""
