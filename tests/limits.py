"""The limit that ends a hang, never a slow machine: jobs take minutes where eight others run beside them.

pytest ends a test after 900 s (`timeout` in pyproject.toml); a wait inside a test ends before and says which it was.
"""

HANG_S = 600
