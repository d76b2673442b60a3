"""Whose line it is: one step with Python frames after the window, and what its event tree says."""
