"""Runs of more ranks than fit in memory: what is kept of every rank, and which of them are analysed in full."""
