"""What the host did: who called whom, when it was blocked and by what, and what it did between two moments."""
