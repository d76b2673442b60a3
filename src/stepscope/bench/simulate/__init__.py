"""One step of a large job simulated in one process, without data: what it communicates and holds."""
