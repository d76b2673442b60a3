"""What a command line names: a run that is there (`run_arguments`, read with a line of `progress`), or a command to
record (`recorded_command`)."""
