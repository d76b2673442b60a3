"""Memory of each rank: allocations and frees (`events`), what they were for (`categories`, `sources`), the peak and
what made it up (`usage`), and growth over steps."""
