"""What was examined and what was not: what every rule needs of a run, what is already applied in it, and runs that
have no steps."""
