"""Without an owner: a line or a module taken out of the replay, or scaled in it."""
