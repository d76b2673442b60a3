"""Starting a job so that it records itself: injection, signals passed on, outside tools, and what came of it."""
