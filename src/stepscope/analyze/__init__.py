"""Analyses of a `Run`: budget, idle time, ranks, kernels, memory, owners; together the account."""
