"""Findings with cost, saving, evidence, cause and remedy; check lists; the verdict."""
