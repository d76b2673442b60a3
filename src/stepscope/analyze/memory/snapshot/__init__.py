"""A CUDA memory snapshot in one answer: every block with its exact size by replaying the allocator (`replay`), what it
was for (`purposes`), and the peak, gaps and leak suspects (`view`)."""
