"""Renderings for the terminal, one file per kind of result; `terminal` makes the console they print to."""
