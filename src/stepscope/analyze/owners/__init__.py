"""Whose line is it: operators of the recorded steps matched to those of a step with Python frames (`align`, `match`),
the owner of every host moment and device operation (`ownership`), and what lines and modules cost (`costs`)."""
