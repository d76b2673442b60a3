"""What the training loop does, learned from what the hooks see: parts, steps, and the routine they settle into."""
