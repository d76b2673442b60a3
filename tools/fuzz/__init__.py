"""Hostile inputs for every command: generators of cases, the pool that runs them, the oracle that judges them."""
