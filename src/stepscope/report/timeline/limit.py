"""How many slices a timeline viewer opens. Apart from the filter, so that the help can name it without the analysis."""

MOST_SLICES = 1_000_000
