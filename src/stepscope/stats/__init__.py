"""Robust statistics and confidence intervals."""
