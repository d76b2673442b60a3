"""A training loop that records itself: `Trainer(...).train(profile=True)`."""
