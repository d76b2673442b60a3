"""Predictions from a recorded run: memory, other world sizes, strategies."""
