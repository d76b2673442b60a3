"""Runs that lie elsewhere: which names are addresses, their files copied here within bounds, results written there."""
