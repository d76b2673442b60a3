"""A run whose job is still at work: what its files say at this moment, read again and again at little cost.

running    the newest steps of every rank, and what its helper says
"""
