"""A job that died or hangs, by its flight recorder dumps: the collectives of each group side by side (`groups`), calls
that do not fit together (`mismatch`), sends without receives (`pairs`), and who is waited for (`hang`)."""
