"""Collectives as they happen: seen where Python enters C++, counted in bytes, kept in a ledger per group."""
