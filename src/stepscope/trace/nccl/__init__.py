"""What NCCL and its tools write: the debug log (`log`, one line at a time by `lines`; what it says: `said`), NCCL
inspector's JSON lines (`inspector`). All are text of any size, read line by line with what is kept bounded."""
