"""Memory of a rank: snapshots at named moments, categories, the allocator's history, a timeline through the step."""
