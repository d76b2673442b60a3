"""The run or command that a command line names."""
