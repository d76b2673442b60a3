"""While the job runs, in its helper processes: never on the training thread."""
