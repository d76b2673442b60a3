"""The page of each command, from its document."""
