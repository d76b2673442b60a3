"""What a parallel strategy costs: how much each rank sends for a model, and how long that takes on given links."""
