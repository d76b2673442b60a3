"""How many slices a timeline viewer opens. Apart from the filter, so that the help can name it without the analysis."""

MAX_SLICES = 1_000_000
