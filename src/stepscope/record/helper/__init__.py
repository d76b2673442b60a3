"""The helper process that does all writing, the way to it, and what ranks agree on without a collective."""
