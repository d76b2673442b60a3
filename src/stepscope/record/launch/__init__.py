"""Starting a job so that it records itself: injection, signals, outside tools, and the result."""
