"""What a sweep shows, and what to use."""
