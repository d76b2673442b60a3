"""Settings that need no code change, tried on a job."""
