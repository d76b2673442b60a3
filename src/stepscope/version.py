"""The version of stepscope, defined only here."""

__version__ = "0.1.0"
