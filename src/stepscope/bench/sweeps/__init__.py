"""Sweeps over one choice at a time: every variant measured in turn, checked against the first, ended with advice."""
