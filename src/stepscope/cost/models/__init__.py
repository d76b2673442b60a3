"""What a model costs before it runs: parameters, FLOPs, activations and memory from its shape."""
