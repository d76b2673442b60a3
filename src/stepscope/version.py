"""The version of stepscope: the one place it stands."""

__version__ = "0.1.0"
