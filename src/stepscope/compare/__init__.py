"""Two runs or sets of runs compared, with intervals and gates; runs over time."""
