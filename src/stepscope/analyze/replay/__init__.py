"""The recorded steps as a program that can be replayed, its critical path, and changes to it."""
