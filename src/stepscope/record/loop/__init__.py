"""The training loop as the hooks see it: events, steps and their parts."""
