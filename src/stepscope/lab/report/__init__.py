"""What the laboratory shows: terminal text, pages and pictures."""
