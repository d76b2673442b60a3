"""What a command line names: a run that is there (`run_arguments`), or a command to record (`recorded_command`)."""
