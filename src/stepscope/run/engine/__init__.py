"""Reading ranks on a cluster of the user's: each file is one task, its table is kept where all machines see it."""
