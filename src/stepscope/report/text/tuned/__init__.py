"""What `stepscope tune` found, as text of 80 columns: the settings with their gains, and what to keep."""
