"""Every step timed, profiled or not: regions, the device's time, the log and its statistics."""
