"""The five-step investigation."""
