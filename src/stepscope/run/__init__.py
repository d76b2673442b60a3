"""Ranks into one `Run`: files, ranks, steps, clocks, matched collectives."""
