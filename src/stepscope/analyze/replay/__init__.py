"""The recorded steps as a program that can be run again: what waits for what (`program`, `graph`), the replay
itself, its critical path, and changes to it, each a function from replay to replay."""
